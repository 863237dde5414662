"""The bench commands: the shape of what they print, the load client's arithmetic, and the machine's limits."""

import json
import subprocess
import sys

import pytest

from lightwell.cli.bench_machine import peak, read_bandwidth
from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.cli.load import Answer, Load, metrics, percentile
from lightwell.errors import StartupError
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.threads import core_cpus
from tests.tiny_gguf import write_tiny_gguf

LIGHTWELL = [sys.executable, "-m", "lightwell.cli.main", "bench"]
ONE_CPU = core_cpus()[:1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=512))


def command(*words: str) -> list[dict]:
    done = subprocess.run([*LIGHTWELL, *words, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_runs_are_told_by_median_and_range():
    runs = Runs((3e9, 1e9, 2.5e9))
    assert show("read", runs, "GB/s", scale=1e9, digits=1) == "read: 2.5 GB/s (from 1.0 to 3.0, 3 runs)"
    told = json.loads(as_json("read", runs, "bytes/s", threads=2))
    assert told == {
        "measure": "read",
        "unit": "bytes/s",
        "threads": 2,
        "median": 2.5e9,
        "lowest": 1e9,
        "highest": 3e9,
        "runs": [3e9, 1e9, 2.5e9],
    }


def test_decode_and_prefill_as_json(tiny):
    [decode] = command("decode", tiny, "--tokens", "8", "--context", "70", "--repeat", "3")
    assert (decode["measure"], decode["context"], len(decode["runs"])) == ("decode", 70, 3)
    [prefill] = command("prefill", tiny, "--tokens", "40", "--chunk", "16", "--repeat", "2")
    assert (prefill["measure"], prefill["chunk"], prefill["unit"]) == ("prefill", 16, "tokens/s")


def test_speculate_as_json(tiny):
    measured = command("speculate", tiny, "--output-tokens", "6", "--repeat", "2")
    assert [(m["measure"], m["workload"]) for m in measured] == [("speculate", "quote"), ("speculate", "free")]
    assert all(m["accepted"] <= m["proposed"] for m in measured)
    of_itself = command("speculate", tiny, "--draft", tiny, "--output-tokens", "6", "--repeat", "1")
    acceptance = [m for m in of_itself if m["measure"] == "acceptance"]
    assert [(m["workload"], m["median"]) for m in acceptance] == [("quote", 1.0), ("free", 1.0)]
    assert acceptance[1]["rejection_sampling"] == pytest.approx(1.0)


def test_serve_as_json(tiny):
    flags = ["--concurrency", "2", "--requests", "4", "--prompt-tokens", "9", "--shared-tokens", "5"]
    [served] = command("serve", tiny, *flags, "--output-tokens", "4")
    assert (served["streams"], served["requests"], served["shared_tokens"]) == (2, 4, 5)
    assert served["ttft_p99_seconds"] >= served["ttft_p50_seconds"] > 0


def test_stall_tells_both_kinds_and_fails_over_a_target_that_is_missed(tiny):
    flags = ["--streams", "2", "--prompt-tokens", "300", "--target-itl"]
    lines = command("stall", tiny, *flags, "100s")
    assert [(line["target"], line["target_itl_seconds"]) for line in lines] == [("with", 100.0), ("without", 100.0)]
    assert all(line["tokens"] >= 2 and line["itl_p99_seconds"] >= line["itl_p50_seconds"] > 0 for line in lines)
    missed = subprocess.run([*LIGHTWELL, "stall", tiny, *flags, "1us"], capture_output=True, text=True, timeout=120)
    assert missed.returncode == 1
    assert "p99 NOT under twice the target" in missed.stdout


@pytest.mark.parametrize(("flag", "value"), [("--target-itl", "soon"), ("--prompt-tokens", "600")])
def test_stall_refuses_what_it_cannot_measure(tiny, flag, value):
    refused = subprocess.run([*LIGHTWELL, "stall", tiny, flag, value], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert value in refused.stderr


def test_machine_names_every_limit():
    lines = command("machine", "--size", "1MiB", "--repeat", "2", "--threads", "1")
    assert [(line["bytes"], line["threads"]) for line in lines if line["measure"] == "read"] == [(1 << 20, 1)]
    peaks = {(line["isa"], line["format"]) for line in lines if line["measure"] == "peak"}
    assert peaks == set(_native.peak_formats())
    assert all(len(line["runs"]) == 2 and line["lowest"] > 0 for line in lines)


@pytest.mark.parametrize(("isa", "number_format"), _native.peak_formats())
def test_every_peak_has_one_positive_value_a_run(isa, number_format):
    assert len(runs := peak(isa, number_format, threads=1, repeat=2).values) == 2
    assert min(runs) > 0


def test_measuring_leaves_the_affinity_of_the_caller_alone():
    before = core_cpus()
    read_bandwidth(1 << 20, threads=1, repeat=1)
    assert core_cpus() == before


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="64 KiB"):
        _native.read_rates(1000, ONE_CPU, 1)
    with pytest.raises(ValueError, match="fp8"):
        _native.operation_rates("portable", "fp8", ONE_CPU, 1)
    with pytest.raises(ValueError, match="CPU"):
        _native.read_rates(1 << 20, [], 1)
    with pytest.raises(StartupError, match="physical cores"):
        read_bandwidth(1 << 30, threads=len(core_cpus()) + 1, repeat=1)


def test_prompts_share_their_beginning_and_nothing_else():
    load = Load(streams=2, requests=5, prompt_tokens=20, output_tokens=1, shared_tokens=30)
    prompts = [prompt.split() for prompt in load.prompts()]
    assert {len(words) for words in prompts} == {50}
    assert len({tuple(words[:30]) for words in prompts}) == 1
    assert len({tuple(words[30:]) for words in prompts}) == 5


def test_another_seed_draws_other_prompts_with_the_same_beginning():
    first, second = (Load(1, 3, 20, 1, shared_tokens=10, seed=seed).prompts() for seed in (1, 2))
    assert not set(first) & set(second)
    assert first[0].split()[:10] == second[0].split()[:10]
    assert first == Load(1, 3, 20, 1, shared_tokens=10, seed=1).prompts()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_word_of_a_prompt_is_a_token(request, model):
    from lightwell.checkpoints import open_checkpoint
    from lightwell.text import load_tokenizer

    tokenizer = load_tokenizer(open_checkpoint(request.getfixturevalue(model)))
    for prompt in Load(1, 8, 209, 1).prompts():
        assert len(tokenizer.encode(prompt, special=False)) == 209


def test_metrics_of_answers():
    answers = [Answer(10.0, [10.5, 10.75, 11.25], 3), Answer(11.0, [12.5, 13.0], 7)]
    found = metrics(answers)
    assert found["tokens_per_second"] == pytest.approx(10 / 3)
    assert found["ttft_p50_seconds"] == pytest.approx(1.0)
    assert found["itl_p50_seconds"] == pytest.approx(0.5)
    assert found["itl_p99_seconds"] == pytest.approx(0.5)


def test_one_token_has_no_time_between_tokens():
    assert "itl_p50_seconds" not in metrics([Answer(0.0, [1.0], 1)])


def test_percentiles_interpolate():
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([4.0], 99) == 4.0
