"""The four ways of batching and allocating, on a modelled accelerator in virtual time: no clock on a wall is read."""

import json

import pytest
from typer.testing import CliRunner

from lightwell.cli.bench_batching import VIRTUAL, WAYS, Work, run_virtual
from lightwell.cli.main import app
from lightwell.cli.replay import Arrival, Outcome, drawn_trace, read_trace, scaled
from lightwell.errors import StartupError

STATIC_RESERVED, STATIC_PAGED, CONTINUOUS_RESERVED, CONTINUOUS_PAGED = range(4)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run_virtual(VIRTUAL, VIRTUAL.arrivals(None)[:100])


def test_continuous_and_paged_win_by_two_to_four_times(outcomes):
    rates = [outcome.tokens_per_second for outcome in outcomes]
    assert 2 <= rates[CONTINUOUS_PAGED] / rates[STATIC_RESERVED] <= 4
    assert rates[STATIC_RESERVED] < min(rates[STATIC_PAGED], rates[CONTINUOUS_RESERVED])
    assert rates[CONTINUOUS_PAGED] > max(rates[STATIC_PAGED], rates[CONTINUOUS_RESERVED])


def test_reserved_blocks_waste_most_of_the_memory_and_paged_ones_hardly_any(outcomes):
    wasted = [outcome.wasted for outcome in outcomes]
    assert 0.6 <= wasted[STATIC_RESERVED] <= 0.8
    assert 0.6 <= wasted[CONTINUOUS_RESERVED] <= 0.8
    assert max(wasted[STATIC_PAGED], wasted[CONTINUOUS_PAGED]) < 0.04


def test_every_way_writes_the_same_answers_and_first_tokens_come_soonest_with_the_last(outcomes):
    assert len({outcome.output_tokens for outcome in outcomes}) == 1
    assert {len(outcome.ttft) for outcome in outcomes} == {100}
    medians = [sorted(outcome.ttft)[50] for outcome in outcomes]
    assert min(medians) == medians[CONTINUOUS_PAGED] > 0


def test_the_same_trace_gives_the_same_outcome():
    work = Work(requests=12, rate=5.0, prompt_scale=0.5, context=2048, windows=2)
    assert run_virtual(work, work.arrivals(None)) == run_virtual(work, work.arrivals(None))


@pytest.mark.slow
def test_the_real_trace_shows_the_same(shared):
    found = run_virtual(VIRTUAL, VIRTUAL.arrivals(shared / "data" / "traces" / "azure2023_conv.csv"))
    assert 2 <= found[CONTINUOUS_PAGED].tokens_per_second / found[STATIC_RESERVED].tokens_per_second <= 4
    assert found[CONTINUOUS_PAGED].wasted < 0.04
    assert 0.6 <= found[STATIC_RESERVED].wasted <= 0.8


def test_drawn_requests_are_like_those_of_the_trace():
    drawn = drawn_trace(5000)
    prompts, answers = sorted(a.prompt_tokens for a in drawn), sorted(a.answer_tokens for a in drawn)
    assert prompts[2500] == pytest.approx(1020, rel=0.05)
    assert sum(prompts) / 5000 == pytest.approx(1155, rel=0.05)
    assert answers[2500] == pytest.approx(129, rel=0.1)
    assert sum(answers) / 5000 == pytest.approx(211, rel=0.1)
    assert drawn_trace(5000) == drawn


def test_a_trace_is_read_and_scaled(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,400,40\n"
        "2023-11-16 18:15:50.9951690,5000,100\n2023-11-16 18:15:51.2224670,1,1\n"
    )
    trace = read_trace(file, 2)
    assert trace == [Arrival(0.0, 400, 40), Arrival(pytest.approx(4.314579), 5000, 100)]
    assert scaled(trace, 4.0, 0.5, 1000) == [Arrival(0.0, 200, 40), Arrival(pytest.approx(0.5), 900, 100)]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n"])
def test_what_is_no_trace_is_refused(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(StartupError, match="no trace"):
        read_trace(file, 5)


def test_the_command_prints_a_line_for_each_way():
    result = CliRunner().invoke(app, ["bench", "batching", "--virtual", "--requests", "12", "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["batching"], line["kv_allocation"]) for line in lines] == [
        (way.batching, way.kv_allocation) for way in WAYS
    ]
