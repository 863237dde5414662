import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.checkpoints.spec import Rope, RopeScaling
from lightwell.models.rope import inverse_frequencies, rotation


def rope(dims: int = 64, theta: float = 10_000, scaling: RopeScaling | None = None) -> Rope:
    return Rope(theta, dims, interleaved=False, scaling=scaling)


def test_plain_frequencies_fall_from_one_by_equal_ratios() -> None:
    frequencies = inverse_frequencies(rope(dims=8, theta=10_000))
    assert np.allclose(frequencies, [1, 0.1, 0.01, 0.001])


def test_linear_divides_every_frequency() -> None:
    scaled = inverse_frequencies(rope(scaling=RopeScaling("linear", factor=4)))
    assert np.array_equal(scaled, inverse_frequencies(rope()) / 4)


def test_factors_divide_frequency_by_frequency() -> None:
    scaled = inverse_frequencies(rope(dims=6, scaling=RopeScaling("factors", factors=(1, 2, 8))))
    assert np.allclose(inverse_frequencies(rope(dims=6)) / scaled, [1, 2, 8])


LLAMA3 = RopeScaling("llama3", factor=8, low_freq_factor=1, high_freq_factor=4, original_context=8192)


def test_llama3_keeps_fast_pairs_stretches_slow_ones_and_blends_between() -> None:
    plain = inverse_frequencies(rope(dims=128, theta=500_000))
    scaled = inverse_frequencies(rope(dims=128, theta=500_000, scaling=LLAMA3))
    turns = plain * 8192 / (2 * math.pi)
    assert np.array_equal(scaled[turns > 4], plain[turns > 4])
    assert np.allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    kept = (turns[between] - 1) / 3
    assert between.any()
    assert np.allclose(scaled[between], plain[between] * (kept + (1 - kept) / 8))


def test_yarn_keeps_the_first_pairs_and_stretches_the_last() -> None:
    """Qwen2.5's setting: 64 pairs, theta 1e6, 32k tokens stretched 4 times; the blend runs over pairs 23 to 40."""
    scaling = RopeScaling("yarn", factor=4, original_context=32_768, attention_factor=0.1 * math.log(4) + 1)
    stretched = rope(dims=128, theta=1_000_000, scaling=scaling)
    ratio = inverse_frequencies(rope(dims=128, theta=1_000_000)) / inverse_frequencies(stretched)
    # pair index = dims * ln(context / (2 pi turns)) / (2 ln theta): 23.6 for 32 turns and 39.7 for one
    assert np.allclose(ratio[:24], 1)
    assert np.allclose(ratio[40:], 4)
    assert np.all(np.diff(ratio[23:41]) > 0)
    assert ratio[32] == pytest.approx(1 / (8 / 17 + 9 / 17 / 4))
    cos, sin = rotation(stretched, [0, 5])
    assert np.allclose(np.hypot(cos, sin), 1.1386294)  # 0.1 ln 4 + 1


def test_yarn_may_blend_from_and_to_anywhere() -> None:
    """gpt-oss' setting: 32 pairs, theta 150,000, 4,096 tokens stretched 32 times."""
    scaling = RopeScaling("yarn", factor=32, original_context=4096, truncate=False)
    ratio = inverse_frequencies(rope(64, 150_000)) / inverse_frequencies(rope(64, 150_000, scaling))
    first, last = (64 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(150_000)) for turns in (32, 1))
    assert first == pytest.approx(8.0927779)
    stretched = (12 - first) / (last - first)
    assert ratio[8] == 1
    assert ratio[12] == pytest.approx(1 / (1 - stretched + stretched / 32))
    assert ratio[18] == pytest.approx(32)


@given(
    position=st.integers(0, 1 << 17),
    dims=st.sampled_from([2, 16, 64, 128]),
    scaling=st.sampled_from([None, LLAMA3, RopeScaling("yarn", factor=2, original_context=4096)]),
)
def test_tables_are_unit_rotations_by_position_times_frequency(
    position: int, dims: int, scaling: RopeScaling | None
) -> None:
    cos, sin = rotation(rope(dims, scaling=scaling), [position])
    assert cos.dtype == sin.dtype == np.float32
    angles = position * inverse_frequencies(rope(dims, scaling=scaling))
    assert np.allclose(cos[0] + 1j * sin[0], np.exp(1j * angles), atol=1e-6)
