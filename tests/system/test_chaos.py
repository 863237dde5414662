"""``make chaos``, small: an engine killed under streams of a real model."""

import pytest

from bench.chaos import chaos


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_over_a_killed_engine_are_byte_identical_to_undisturbed_ones(smollm2):
    report = await chaos(str(smollm2), streams=8, kills=3, seed=5)
    assert report.kills >= 3
    assert not report.failures, str(report)
    assert report.kinds.total() >= 8
