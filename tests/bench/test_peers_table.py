"""The comparison's arithmetic and bookkeeping: ratios, spreads, verdicts, exit codes, records, selection, turns."""

import dataclasses
import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers.__main__ import arguments, main, select
from bench.peers.records import Recorder, Results, read_results
from bench.peers.rounds import run
from bench.peers.rows import LIGHTWELL, LLAMA, MACHINE, OPENVINO, VLLM, Demand, Row, limit_rows, peer_rows
from bench.peers.table import Verdict, exit_code, judge, lines, render
from bench.peers.workloads import Decode, Prefill, Setting, Unavailable, as_load, rate_of, served_metrics
from lightwell.cli.load import Answer, Load

RATE, TTFT = "tokens_per_second", "ttft_p50_seconds"
ROW = Row("decode", "decode", Decode(), Setting(), (LLAMA, OPENVINO, MACHINE), (Demand(RATE, (LLAMA,), 2),))


def results(**values: list[dict[str, float]]) -> Results:
    """Rounds of metrics by subject, all of the row ``decode``; ``missing`` subjects by reason."""
    names = {"ours": LIGHTWELL, "llama": LLAMA, "openvino": OPENVINO, "machine": MACHINE, "vllm": VLLM}
    found = Results(rows=["decode"])
    for name, rounds in values.items():
        found.values["decode", names[name]] = dict(enumerate(rounds, 1))
    return found


def rates(*values: float) -> list[dict[str, float]]:
    return [{RATE: value} for value in values]


def test_a_ratio_is_of_medians_and_its_spread_of_the_rounds():
    line = judge(ROW, ROW.demands[0], results(ours=rates(100, 300, 200), llama=rates(50, 100, 50)))
    assert (line.ours.median, line.ours.lowest, line.ours.highest) == (200, 100, 300)
    assert (line.ratio.median, line.ratio.lowest, line.ratio.highest) == (4, 2, 4)
    assert line.verdict is Verdict.REACHED


def test_a_time_is_better_when_it_is_shorter():
    demand = Demand(TTFT, (LLAMA, OPENVINO), 2)
    found = results(ours=[{TTFT: 0.2}], llama=[{TTFT: 1.0}], openvino=[{TTFT: 0.3}])
    line = judge(ROW, demand, found)
    assert line.against == OPENVINO, "the best of those who are named"
    assert line.ratio.median == pytest.approx(1.5)
    assert line.verdict is Verdict.SHORT


def test_the_best_rival_has_the_highest_rate():
    line = judge(ROW, Demand(RATE, (LLAMA, OPENVINO), 2), results(ours=rates(9), llama=rates(2), openvino=rates(3)))
    assert line.against == OPENVINO
    assert line.verdict is Verdict.REACHED


def test_a_bound_is_on_our_own_figure():
    demand = Demand("resident_bytes", at_most=600e6)
    assert judge(ROW, demand, results(ours=[{"resident_bytes": 599e6}])).verdict is Verdict.REACHED
    assert judge(ROW, demand, results(ours=[{"resident_bytes": 601e6}])).verdict is Verdict.SHORT
    assert judge(ROW, demand, results()).verdict is Verdict.NOT_MEASURED


def test_who_is_missing_is_named_with_the_reason():
    found = results(ours=rates(9), llama=rates(3))
    found.missing["decode", VLLM] = "needs AVX2"
    line = judge(ROW, Demand(RATE, (LLAMA, VLLM), 2), found)
    assert line.verdict is Verdict.NOT_MEASURED
    assert line.reason == "vLLM: needs AVX2"
    assert line.ratio.median == 3, "what was measured is shown"
    assert "not measured in decode: vLLM: needs AVX2" in render([line], found)


def test_behind_one_rival_is_short_whoever_is_missing():
    line = judge(ROW, Demand(RATE, (LLAMA, VLLM), 2), results(ours=rates(5), llama=rates(3)))
    assert line.verdict is Verdict.SHORT


def test_shares_of_the_machine():
    line = judge(ROW, ROW.demands[0], results(ours=rates(60, 60), llama=rates(20, 20), machine=rates(80, 80)))
    assert (line.our_share, line.their_share) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("verdicts", "strict", "lenient"),
    [
        ([Verdict.REACHED, Verdict.NONE], 0, 0),
        ([Verdict.REACHED, Verdict.NOT_MEASURED], 1, 0),
        ([Verdict.SHORT, Verdict.REACHED], 1, 1),
        ([Verdict.SHORT, Verdict.NOT_MEASURED], 1, 1),
    ],
)
def test_exit_code(verdicts, strict, lenient):
    table = [replace(judge(ROW, ROW.demands[0], results()), verdict=verdict) for verdict in verdicts]
    assert exit_code(table, allow_missing=False) == strict
    assert exit_code(table, allow_missing=True) == lenient


def test_others_that_were_measured_are_shown_without_a_demand():
    table = list(lines([ROW], results(ours=rates(6), llama=rates(3), openvino=rates(2), machine=rates(12))))
    assert [(line.against, line.verdict) for line in table] == [
        (LLAMA, Verdict.REACHED),
        (OPENVINO, Verdict.NONE),
        (MACHINE, Verdict.NONE),
    ]


@given(
    ours=st.lists(st.floats(1, 1e6), min_size=1, max_size=6), theirs=st.lists(st.floats(1, 1e6), min_size=1, max_size=6)
)
def test_a_verdict_is_what_the_printed_medians_say(ours, theirs):
    line = judge(ROW, ROW.demands[0], results(ours=rates(*ours), llama=rates(*theirs)))
    assert line.ratio.median == pytest.approx(line.ours.median / line.theirs.median)
    assert line.verdict is (Verdict.REACHED if line.ratio.median >= 2 else Verdict.SHORT)
    assert line.ours.lowest <= line.ours.median <= line.ours.highest


class FakeSession:
    """Counts what is done to it; its rate is the seed."""

    def __init__(self, subject: str, log: list[str]) -> None:
        self.subject, self.log = subject, log

    def measure(self, workload, seed):
        self.log.append(f"measure {self.subject}")
        if self.subject == OPENVINO and seed % 1000 == 2:
            raise Unavailable("it fell over")
        return {RATE: float(seed)}

    def freeze(self):
        self.log.append(f"freeze {self.subject}")

    def thaw(self):
        self.log.append(f"thaw {self.subject}")

    def close(self):
        self.log.append(f"close {self.subject}")


def taken(rows: list[Row], rounds: int) -> tuple[Results, list[str], str]:
    log: list[str] = []
    file = io.StringIO()

    def open_session(subject, setting):
        if subject == MACHINE:
            raise Unavailable("no such machine")
        log.append(f"open {subject}")
        return FakeSession(subject, log)

    found = Results()
    run(rows, frozenset({LLAMA, OPENVINO, MACHINE}), rounds, open_session, Recorder(found, file))
    return found, log, file.getvalue()


def test_all_take_turns_in_each_round_and_the_first_round_is_not_written_down():
    found, log, _ = taken([ROW], rounds=1)
    measured = [entry.removeprefix("measure ") for entry in log if entry.startswith("measure")]
    assert measured == [LIGHTWELL, LLAMA, OPENVINO] * 2
    assert list(found.series("decode", LLAMA, RATE)) == [1]


def test_each_round_of_each_row_has_prompts_of_its_own_that_all_subjects_get():
    other = dataclasses.replace(ROW, name="other")
    found, _, _ = taken([ROW, other], rounds=3)
    seeds = {row: found.series(row, LIGHTWELL, RATE) for row in ("decode", "other")}
    assert len({*seeds["decode"].values(), *seeds["other"].values()}) == 6
    assert all(found.series(row, LLAMA, RATE) == of_row for row, of_row in seeds.items())


def test_whoever_is_not_measured_is_frozen():
    _, log, _ = taken([ROW], rounds=1)
    frozen: set[str] = set()
    for entry in log:
        what, _, subject = entry.partition(" ")
        if what == "freeze":
            frozen.add(subject)
        elif what == "thaw":
            frozen.discard(subject)
        elif what == "measure":
            assert subject not in frozen
    assert not frozen
    assert f"freeze {LLAMA}" in log


def test_a_subject_that_fails_keeps_its_reason_and_all_are_closed():
    found, log, _ = taken([ROW], rounds=4)
    assert found.missing == {("decode", OPENVINO): "it fell over", ("decode", MACHINE): "no such machine"}
    assert len(found.series("decode", LLAMA, RATE)) == 4
    assert {entry for entry in log if entry.startswith("close")} == {f"close {n}" for n in (LIGHTWELL, LLAMA, OPENVINO)}


def test_rows_of_one_setting_share_processes():
    _, log, _ = taken([ROW, replace(ROW, name="other"), replace(ROW, name="one", setting=Setting(threads=1))], rounds=1)
    assert log.count(f"open {LLAMA}") == 2


def test_a_row_of_one_round_has_no_warm_up():
    _, log, _ = taken([replace(ROW, once=True)], rounds=5)
    assert log.count(f"measure {LLAMA}") == 1


def test_the_table_can_be_made_again_from_the_file(tmp_path):
    found, _, text = taken([ROW], rounds=3)
    file = tmp_path / "run.jsonl"
    file.write_text(text, encoding="utf-8")
    assert read_results(file) == found
    assert render(list(lines([ROW], read_results(file))), found) == render(list(lines([ROW], found)), found)


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps({"kind": "banana"}) + "\n")
    with pytest.raises(ValueError, match="banana"):
        read_results(file)


def test_printing_an_earlier_run_gives_its_exit_code(tmp_path, capsys):
    file = tmp_path / "run.jsonl"
    records = [{"kind": "row", "row": "start"}]
    records += [
        {"kind": "value", "row": "start", "subject": LIGHTWELL, "round": n, "metrics": {"first_token_seconds": seconds}}
        for n, seconds in ((1, 0.5), (2, 0.6), (3, 0.9))
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["--print", str(file)]) == 0
    assert "600.0 ms (500.0 ms to 900.0 ms)" in capsys.readouterr().out
    records[-2]["metrics"] = {"first_token_seconds": 0.8}
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["--print", str(file)]) == 1


def test_selecting_rows():
    rows = peer_rows(2)
    assert [row.name for row in select(rows, "served-*,decode")] == ["decode", "served-4", "served-16", "served-64"]
    assert select(rows, "*") == rows
    with pytest.raises(SystemExit, match="no row is called nonsense"):
        select(rows, "decode,nonsense")


@pytest.mark.parametrize(
    "words", [["--peers", "ollama"], ["--venv", "vLLM"], ["--venv", "x=/y"], ["--rounds", "0"], ["everything"]]
)
def test_wrong_options_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        arguments(words)
    assert capsys.readouterr().err


def test_every_row_has_its_own_name_and_asks_only_for_what_it_measures():
    rows = [*peer_rows(2), *limit_rows(2)]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        for demand in row.demands:
            assert {demand.subject, *demand.against} <= {LIGHTWELL, *row.subjects}, row.name
            assert (demand.at_least is None) != (demand.at_most is None)


def test_rows_of_one_setting_stand_together():
    settings = [row.setting for row in peer_rows(2)]
    changes = sum(a != b for a, b in pairwise(settings))
    assert changes == len(set(settings)) - 1


def test_decode_and_prefill_as_requests():
    assert as_load(Prefill(512), 3) == Load(1, 1, 512, 1, seed=3)
    assert rate_of(Prefill(512), Answer(1.0, [3.0], 1)) == {RATE: 256}
    assert rate_of(Decode(5), Answer(0.0, [1.0, 1.5, 2.0, 2.5, 3.0], 5)) == {RATE: 2}
    with pytest.raises(Unavailable):
        as_load(Decode(5, batch=2), 1)


def test_answers_that_are_too_short_or_too_few_are_no_measurement():
    load = Load(1, 2, prompt_tokens=3, output_tokens=4)
    whole, cut = Answer(0.0, [1.0, 2.0], 4), Answer(0.0, [1.0], 3)
    assert served_metrics([whole, whole], load)[RATE] == 4
    with pytest.raises(Unavailable, match="gave some of 3 tokens"):
        served_metrics([whole, cut], load)
    with pytest.raises(Unavailable, match="1 in number"):
        served_metrics([whole], load)
