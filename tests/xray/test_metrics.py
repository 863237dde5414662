"""Metrics as readings of the event log: the numbers, and their names for Prometheus."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from lightwell.events import (
    FREE_BLOCKS,
    Admitted,
    Blocked,
    Died,
    Finished,
    Loaded,
    Preempted,
    Prefilled,
    Queued,
    Rejected,
    Reused,
    Sampled,
    Speculated,
    Stepped,
)
from lightwell.xray.metrics import Metrics

VLLM = {
    "vllm:num_requests_running": "lightwell_requests_running",
    "vllm:num_requests_waiting": "lightwell_requests_waiting",
    "vllm:kv_cache_usage_perc": "lightwell_kv_usage_ratio",
    "vllm:gpu_cache_usage_perc": "lightwell_kv_usage_ratio",
    "vllm:prefix_cache_queries_total": "lightwell_prefix_cache_queried_tokens_total",
    "vllm:prefix_cache_hits_total": "lightwell_prefix_cache_hit_tokens_total",
    "vllm:prompt_tokens_total": "lightwell_prompt_tokens_total",
    "vllm:generation_tokens_total": "lightwell_generation_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total": "lightwell_speculative_proposed_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "lightwell_speculative_accepted_tokens_total",
    "vllm:num_preemptions_total": "lightwell_preemptions_total",
    "vllm:request_success_total": "lightwell_requests_finished_total",
}
VLLM_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "lightwell_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "lightwell_inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds": "lightwell_inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds": "lightwell_e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds": "lightwell_request_queue_time_seconds",
    "vllm:request_prefill_time_seconds": "lightwell_request_prefill_time_seconds",
    "vllm:request_decode_time_seconds": "lightwell_request_decode_time_seconds",
    "vllm:request_prompt_tokens": "lightwell_request_prompt_tokens",
    "vllm:request_generation_tokens": "lightwell_request_generation_tokens",
    "vllm:iteration_tokens_total": "lightwell_step_tokens",
}


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name, with the reason of an end or of a wait in brackets."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith(("lightwell_", "vllm:")):
                assert (sample.labels["model_name"], sample.labels["engine"]) == ("tiny", "0")
            if "le" not in sample.labels:
                reason = sample.labels.get("finished_reason", sample.labels.get("reason"))
                name = sample.name if reason is None else f"{sample.name}[{reason}]"
                assert name not in found
                found[name] = sample.value
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("tiny")


LIFE = [
    Queued(1.0, "a", 100, 50, 0),
    Admitted(1.5, "a", 32, 0.5, False),
    Prefilled(1.6, "a", 32, 40),
    Stepped(1.6, 0.1, 1, 40, 1, 0, 4, 10),
    Sampled(2.0, "a", 7),
    Stepped(2.0, 0.3, 1, 28, 1, 0, 4, 10),
    Sampled(2.25, "a", 8),
]


def test_one_request_from_queue_to_end(metrics):
    metrics.read(LIFE[:1])
    assert (values(metrics)["lightwell_requests_waiting"], values(metrics)["lightwell_requests_running"]) == (1, 0)
    metrics.read(LIFE[1:])
    now = values(metrics)
    assert (now["lightwell_requests_waiting"], now["lightwell_requests_running"]) == (0, 1)
    assert now["lightwell_kv_usage_ratio"] == 0.4
    metrics.read([Finished(3.0, "a", "length", 100, 32, 2)])
    now = values(metrics)
    assert (now["lightwell_requests_waiting"], now["lightwell_requests_running"]) == (0, 0)
    assert now["lightwell_kv_usage_ratio"] == 0
    assert now["lightwell_prompt_tokens_total"] == 100
    assert now["lightwell_generation_tokens_total"] == 2
    assert now["lightwell_prefix_cache_queried_tokens_total"] == 100
    assert now["lightwell_prefix_cache_hit_tokens_total"] == 32
    assert now["lightwell_requests_finished_total[length]"] == 1
    for name, count, total in [
        ("time_to_first_token_seconds", 1, 1.0),
        ("inter_token_latency_seconds", 1, 0.25),
        ("e2e_request_latency_seconds", 1, 2.0),
        ("request_queue_time_seconds", 1, 0.5),
        ("request_prefill_time_seconds", 1, 0.5),
        ("request_decode_time_seconds", 1, 0.25),
        ("request_prompt_tokens", 1, 100),
        ("request_generation_tokens", 1, 2),
        ("step_duration_seconds", 2, 0.4),
        ("step_sequences", 2, 2),
        ("step_tokens", 2, 68),
    ]:
        assert now[f"lightwell_{name}_count"] == count
        assert now[f"lightwell_{name}_sum"] == pytest.approx(total)


def test_every_vllm_name_has_the_value_of_ours(metrics):
    metrics.read(
        [*LIFE, Speculated(2.2, "a", 4, 3), Preempted(2.3, "a", 4, 101), Finished(3.0, "a", "stop", 100, 32, 2)]
    )
    metrics.read([Queued(4.0, "b", 10, 5, 0), Admitted(4.0, "b", 0, 0.0, False), Queued(4.0, "c", 10, 5, 0)])
    now = values(metrics)
    for theirs, ours in VLLM.items():
        suffix = "[stop]" if theirs == "vllm:request_success_total" else ""
        assert now[theirs + suffix] == now[ours + suffix]
        assert now[theirs + suffix] > 0
    for theirs, ours in VLLM_HISTOGRAMS.items():
        for part in ("_count", "_sum"):
            assert now[theirs + part] == now[ours + part]
        assert now[theirs + "_count"] > 0
    known = {*VLLM, *(name + part for name in VLLM_HISTOGRAMS for part in ("_count", "_sum"))}
    assert {name.split("[")[0] for name in now if name.startswith("vllm:")} == known


def test_time_to_first_token_is_observed_once_and_only_for_requests_with_a_token(metrics):
    metrics.read([*LIFE, Preempted(3.0, "a", 4, 101), Admitted(4.0, "a", 64, 1.0, True), Sampled(5.0, "a", 9)])
    metrics.read([Queued(5.0, "b", 10, 5, 0), Admitted(5.0, "b", 0, 0.0, False), Finished(6.0, "b", "abort", 10, 0, 0)])
    now = values(metrics)
    assert now["lightwell_time_to_first_token_seconds_count"] == 1
    assert now["lightwell_prompt_tokens_total"] == 100
    assert now["lightwell_request_queue_time_seconds_count"] == 2
    assert now["lightwell_prefix_cache_queried_tokens_total"] == 110
    assert now["lightwell_preemptions_total"] == 1
    assert now["lightwell_requests_finished_total[abort]"] == 1


def test_a_preempted_request_waits_again(metrics):
    metrics.read([*LIFE, Preempted(3.0, "a", 4, 101)])
    now = values(metrics)
    assert (now["lightwell_requests_waiting"], now["lightwell_requests_running"]) == (1, 0)


def test_a_stop_string_is_a_normal_end_although_the_engine_was_told_to_abort(metrics):
    metrics.read(LIFE)
    metrics.stopped("a")
    metrics.read([Finished(3.0, "a", "abort", 100, 32, 2)])
    metrics.stopped("a")  # too late, and nothing comes of it
    now = values(metrics)
    assert now["lightwell_requests_finished_total[stop]"] == 1
    assert "lightwell_requests_finished_total[abort]" not in now


def test_a_rejected_request_leaves_the_queue(metrics):
    metrics.read([Queued(1.0, "a", 100, 50, 0), Rejected(1.0, "a", 150, 100, "context window")])
    metrics.read([Rejected(1.0, "never queued", 150, 100, "context window")])
    now = values(metrics)
    assert now["lightwell_requests_waiting"] == 0
    assert now["lightwell_requests_rejected_total"] == 2


def test_a_full_cache_shows_as_refusals_or_as_waits_by_reason(metrics):
    metrics.read([Queued(1.0, "a", 100, 50, 0), Rejected(1.0, "a", 160, 32, FREE_BLOCKS)])
    metrics.read([Blocked(2.0, "b", reason, 5, 1) for reason in ("blocks", "sequences", "blocks")])
    now = values(metrics)
    assert now["lightwell_requests_waiting"] == 0
    assert now["lightwell_requests_overloaded_total"] == 1
    assert now["lightwell_requests_rejected_total"] == 0
    assert now["lightwell_requests_blocked_total[blocks]"] == 2
    assert now["lightwell_requests_blocked_total[sequences]"] == 1


def test_a_request_that_outlives_its_engine_is_one_request(metrics):
    metrics.read([*LIFE, Died(3.0, "SIGKILL", 1)])
    now = values(metrics)
    assert (now["lightwell_requests_waiting"], now["lightwell_requests_running"]) == (1, 0)
    assert now["lightwell_kv_usage_ratio"] == 0
    metrics.read([Loaded(4.0, "tiny", 1, 1, 1, 10), Admitted(4.0, "a", 0, 1.0, True), Sampled(4.5, "a", 9)])
    metrics.read([Finished(5.0, "a", "length", 100, 32, 3)])
    now = values(metrics)
    assert now["lightwell_engine_deaths_total"] == 1
    assert now["lightwell_prompt_tokens_total"] == 100
    assert now["lightwell_generation_tokens_total"] == 3
    assert now["lightwell_time_to_first_token_seconds_count"] == now["lightwell_request_queue_time_seconds_count"] == 1
    assert now["lightwell_requests_finished_total[length]"] == 1


def test_blocks_that_went_to_the_offload_store_and_came_back_are_counted(metrics):
    for offloaded, restored in [(3, 0), (0, 0), (1, 2)]:
        metrics.read([Stepped(1.0, 0.1, 1, 1, 1, 0, 1, 10, offloaded, restored)])
    now = values(metrics)
    assert now["lightwell_kv_offloaded_blocks_total"] == 4
    assert now["lightwell_kv_restored_blocks_total"] == 2


def test_tokens_reused_while_running_are_hits_too_but_not_after_a_preemption(metrics):
    metrics.read([Queued(0.0, "a", 100, 5, 0), Admitted(0.0, "a", 32, 0.0, False), Reused(0.1, "a", 32, 20)])
    assert values(metrics)["lightwell_prefix_cache_hit_tokens_total"] == 52
    metrics.read([Preempted(0.2, "a", 2, 60), Admitted(0.3, "a", 32, 0.1, True), Reused(0.3, "a", 32, 28)])
    metrics.read([Reused(0.4, "unknown", 0, 9)])
    assert values(metrics)["lightwell_prefix_cache_hit_tokens_total"] == 52


def test_two_servers_in_one_process_share_nothing():
    first, second = Metrics("tiny"), Metrics("tiny")
    first.read(LIFE)
    assert values(second)["lightwell_generation_tokens_total"] == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_gauges_follow_any_run_of_requests(seed):
    """Random but possible lives of requests, shuffled into one another."""
    draw, metrics = random.Random(seed), Metrics("tiny")
    state: dict[str, str] = {}
    for step in range(60):
        moves = [("queue", f"r{step}")] + [(draw.choice(MOVES[where]), name) for name, where in state.items()]
        move, name = draw.choice(moves)
        metrics.read([_event(move, name, step)])
        if move in ("finish", "reject"):
            del state[name]
        else:
            state[name] = {"queue": "waiting", "admit": "running", "preempt": "waiting"}.get(move, "running")
    now = values(metrics)
    assert now["lightwell_requests_waiting"] == list(state.values()).count("waiting")
    assert now["lightwell_requests_running"] == list(state.values()).count("running")


MOVES = {"waiting": ["admit", "finish", "reject"], "running": ["sample", "preempt", "finish"]}


def _event(move: str, name: str, at: float):
    return {
        "queue": Queued(at, name, 10, 5, 0),
        "admit": Admitted(at, name, 0, 0.0, False),
        "sample": Sampled(at, name, 1),
        "preempt": Preempted(at, name, 1, 1),
        "finish": Finished(at, name, "abort", 10, 0, 0),
        "reject": Rejected(at, name, 1, 1, "KV cache"),
    }[move]
