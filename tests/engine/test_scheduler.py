"""The scheduler alone, without a runtime: what it plans, step by step, under a clock that the test sets."""

from dataclasses import replace

import pytest
from driving import Driver, make_limits, make_request

from lightwell.engine.cost_model import Load
from lightwell.engine.dial import within_itl
from lightwell.engine.policies import Policies
from lightwell.errors import InvalidRequest, InvariantError
from lightwell.events import (
    Admitted,
    Blocked,
    Finished,
    Preempted,
    Prefilled,
    Queued,
    Rejected,
    Reused,
    Sampled,
    TokenLogprobs,
)

# ---- one request ----


def test_a_prompt_is_computed_in_chunks_and_then_one_token_a_step():
    driver = Driver(make_limits(max_step_tokens=64))
    driver.submit(make_request("a", 150, max_tokens=3))
    driver.finish()
    assert driver.plans == [{"a": 64}, {"a": 64}, {"a": 22}, {"a": 1}, {"a": 1}]
    assert driver.events == [
        Queued(0, "a", 150, 3, 0),
        Admitted(0, "a", cached_tokens=0, waited=0, resumed=False),
        Prefilled(1, "a", 0, 64),
        Prefilled(2, "a", 64, 64),
        Prefilled(3, "a", 128, 22),
        Sampled(3, "a", 7),
        Sampled(4, "a", 7),
        Sampled(5, "a", 7),
        Finished(5, "a", "length", prompt_tokens=150, cached_tokens=0, output_tokens=3),
    ]


def test_a_prompt_of_one_token_counts_as_prefill():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 1, max_tokens=2))
    driver.finish()
    assert driver.of(Prefilled) == [Prefilled(1, "a", 0, 1)]


def test_a_stop_token_ends_the_answer_and_is_its_last_token():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 5, max_tokens=9, stop_tokens=frozenset({7})))
    driver.finish()
    assert driver.of(Finished) == [Finished(1, "a", "stop", 5, 0, 1)]


def test_stop_wins_over_length():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 5, max_tokens=1, stop_tokens=frozenset({7})))
    driver.finish()
    assert driver.of(Finished)[0].reason == "stop"


def test_a_request_may_fill_the_context_window_to_its_last_token():
    driver = Driver(make_limits(context_tokens=64))
    driver.submit(make_request("a", 60, max_tokens=4))
    driver.finish()
    assert driver.of(Finished) == [Finished(4, "a", "length", 60, 0, 4)]


def test_what_could_never_run_is_refused_at_once_with_both_numbers_and_the_next_one_runs():
    # public report: vllm#765, after one over-long prompt nothing was served any more
    driver = Driver(make_limits(blocks=4, context_tokens=200))
    driver.submit(make_request("long", 150, max_tokens=51), make_request("big", 100, max_tokens=29))
    assert driver.of(Rejected) == [
        Rejected(0, "long", 201, 200, "context window"),
        Rejected(0, "big", 129, 128, "KV cache"),
    ]
    assert not driver.scheduler.has_work
    driver.submit(make_request("next", 100, max_tokens=28))
    driver.finish()
    assert driver.of(Finished, "next")


def test_malformed_requests_are_errors():
    driver = Driver(make_limits())
    with pytest.raises(InvalidRequest, match="at least one prompt token"):
        driver.submit(make_request("a", []))
    with pytest.raises(InvalidRequest, match="max_tokens"):
        driver.submit(make_request("a", 3, max_tokens=0))
    driver.submit(make_request("a", 3))
    with pytest.raises(InvalidRequest, match="already open"):
        driver.submit(make_request("a", 3))
    driver.finish()
    driver.submit(make_request("a", 3))
    driver.finish()


def test_logprobs_go_with_their_tokens():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 3), make_request("b", 3))
    plan = driver.schedule()
    seen = TokenLogprobs(-0.5, [8], [-0.5])
    events = driver.scheduler.update(plan, [8, 9], 1.0, [seen, None])
    assert [e for e in events if isinstance(e, Sampled)] == [Sampled(1.0, "a", 8, seen), Sampled(1.0, "b", 9)]


@pytest.mark.parametrize("tokens", [[], [1, 2]])
def test_a_result_that_does_not_fit_the_plan_is_an_error(tokens: list[int]):
    driver = Driver(make_limits())
    driver.submit(make_request("a", 3))
    with pytest.raises(InvariantError, match="asked for 1"):
        driver.scheduler.update(driver.schedule(), tokens, 1.0)


def test_the_same_calls_give_the_same_plans():
    def play() -> tuple[list, list]:
        driver = Driver(make_limits(blocks=12, max_sequences=4, max_step_tokens=48))
        for i in range(12):
            driver.submit(make_request(f"r{i}", [i % 3] * (20 + 13 * i % 90), max_tokens=5 + i, priority=i % 2))
            driver.step()
        driver.finish()
        return driver.plans, driver.events

    assert play() == play()


# ---- sharing a step ----


def test_a_short_prompt_does_not_wait_for_the_long_prefill_before_it():
    # public report: vllm#10774
    driver = Driver(make_limits())
    driver.submit(make_request("long", 10_000))
    driver.step(5)
    driver.submit(make_request("short", 10))
    driver.step()
    assert [e.at for e in driver.of(Sampled, "short")] == [driver.now]
    assert driver.plans[-1]["long"] > 400


def test_a_stream_of_short_prompts_does_not_starve_a_long_one():
    driver = Driver(make_limits(blocks=2000, max_step_tokens=512))
    driver.submit(make_request("long", 10_000))
    alone = -(-10_000 // 512)
    for step in range(2 * alone + 4):
        driver.submit(*[make_request(f"{step}-{i}", 200, max_tokens=1) for i in range(4)])
        driver.step()
    assert driver.of(Sampled, "long")


def test_every_running_request_gets_a_token_in_every_step_of_a_long_prefill():
    # public report: vllm#1026
    driver = Driver(make_limits())
    decoding = [f"d{i}" for i in range(8)]
    driver.submit(*[make_request(id, 5, max_tokens=200) for id in decoding])
    driver.step()
    driver.submit(make_request("long", 10_000))
    while not driver.of(Sampled, "long"):
        step = driver.step()
        assert [step[id] for id in decoding] == [1] * 8
        assert sum(step.values()) <= 512
        assert list(step)[:8] == decoding, "decoding sequences come first"


def test_with_an_itl_target_no_step_that_decodes_takes_longer_than_it():
    # public reports: vllm#1026, 272 tokens/s fell to 6.6 while a long prompt was computed
    class Cost:
        def step_seconds(self, load: Load) -> float:
            return 0.004 + 0.0002 * load.decoding + 0.0001 * load.prefill

    def seconds(decoding: int, prefill_tokens: int) -> float:
        return Cost().step_seconds(Load(decoding, 0, prefill_tokens, 0))

    driver = Driver(make_limits(), Policies(budget=within_itl(0.02, Cost())))
    driver.submit(make_request("long", 5000))
    assert driver.step() == {"long": 512}, "with nobody to hurry for, the chunk is whole"
    driver.submit(*[make_request(f"d{i}", 3, max_tokens=500) for i in range(6)])
    driver.step(2)
    while not driver.of(Sampled, "long"):
        step = driver.step()
        assert seconds(6, step["long"]) <= 0.02
        assert step["long"] > 64 or driver.of(Sampled, "long"), "and prefill goes on at what the target allows"


def test_a_step_never_holds_more_than_its_budget_of_tokens_and_sequences():
    driver = Driver(make_limits(max_step_tokens=40, max_sequences=5))
    driver.submit(*[make_request(f"r{i}", 30 + i, max_tokens=20) for i in range(12)])
    driver.finish()
    assert max(sum(plan.values()) for plan in driver.plans) <= 40
    assert max(len(plan) for plan in driver.plans) == 5


def test_parallel_requests_with_one_prefix_compute_it_once():
    driver = Driver(make_limits(max_step_tokens=512))
    prefix = list(range(2048))
    driver.submit(*[make_request(f"r{i}", [*prefix, 5000 + i], max_tokens=3) for i in range(16)])
    driver.finish()
    computed = sum(e.tokens for e in driver.of(Prefilled))
    assert computed < 2048 + 16 * 40
    assert driver.of(Reused)
    assert [e.cached_tokens for e in driver.of(Finished)].count(2048) >= 14


# ---- admission ----


def test_a_prompt_starts_only_when_all_of_it_fits():
    # public report: vllm PR#37307, prompts admitted for their first chunk took turns in preempting each other
    driver = Driver(make_limits(blocks=100, max_step_tokens=64))
    prompt = 70 * 32 - 10
    driver.submit(make_request("a", prompt, max_tokens=5), make_request("b", prompt, max_tokens=5))
    driver.finish()
    assert driver.of(Preempted) == []
    assert driver.of(Admitted, "b")[0].at >= driver.of(Finished, "a")[0].at
    assert driver.of(Blocked) == [Blocked(0, "b", "blocks", needed_blocks=70, free_blocks=30)]


def test_blocks_promised_to_a_prefilling_prompt_are_not_given_to_another():
    driver = Driver(make_limits(blocks=100, max_step_tokens=64, watermark=0.0))
    driver.submit(make_request("a", 60 * 32), make_request("b", 41 * 32), make_request("c", 39 * 32))
    driver.step()
    assert driver.running() == ["a", "c"]


def preemptions_at(watermark: float) -> int:
    driver = Driver(make_limits(blocks=100, max_sequences=32, watermark=watermark))
    for i in range(60):
        driver.submit(make_request(f"r{i}", 100 + 17 * i % 80, max_tokens=60 + 29 * i % 70))
        driver.step(2)
    driver.finish()
    return len(driver.of(Preempted))


def test_a_watermark_prevents_preemptions():
    # public report: vllm PR#44594, 1,065 preemptions became 187
    without, with_one = preemptions_at(0.0), preemptions_at(0.1)
    assert with_one < without / 2


def test_the_watermark_never_blocks_the_first_request_into_an_empty_pool():
    driver = Driver(make_limits(blocks=10, watermark=0.5))
    driver.submit(make_request("a", 10 * 32 - 4, max_tokens=4))
    driver.step()
    assert driver.running() == ["a"]


def test_why_the_head_waits_is_said_once_for_each_reason():
    driver = Driver(make_limits(blocks=20, max_sequences=2, watermark=0.0))
    driver.submit(make_request("a", 10 * 32, max_tokens=2), make_request("b", 5 * 32, max_tokens=5))
    driver.submit(make_request("c", 15 * 32, max_tokens=2))
    driver.finish()
    assert [(e.request, e.reason) for e in driver.of(Blocked)] == [("c", "sequences"), ("c", "blocks")]


def test_a_cached_prefix_that_others_hold_needs_no_room():
    driver = Driver(make_limits(blocks=20, watermark=0.0))
    prefix = list(range(12 * 32))
    driver.submit(make_request("a", prefix, max_tokens=100))
    driver.step()
    driver.submit(make_request("b", [*prefix, 1, 2], max_tokens=2))
    driver.step()
    assert driver.of(Admitted, "b")[0].cached_tokens == 12 * 32
    driver.finish()


def test_smaller_requests_may_pass_a_blocked_one_only_so_often():
    driver = Driver(make_limits(blocks=100, max_bypasses=8))
    driver.submit(make_request("holder", 50 * 32, max_tokens=300), make_request("blocked", 80 * 32))
    for i in range(40):
        driver.submit(make_request(f"small{i}", 10, max_tokens=3))
        driver.step()
    started_before = [e for e in driver.of(Admitted) if e.request.startswith("small")]
    assert len(started_before) == 8
    driver.finish()
    starts = [e.request for e in driver.of(Admitted)]
    assert starts.index("blocked") == 9, "it is the next to start"


def test_several_that_wait_are_each_passed_only_so_often():
    driver = Driver(make_limits(blocks=100, max_bypasses=3))
    driver.submit(make_request("holder", 50 * 32, max_tokens=300))
    driver.submit(make_request("x", 80 * 32), make_request("y", 80 * 32))
    driver.submit(*[make_request(f"small{i}", 10, max_tokens=3) for i in range(10)])
    driver.finish()
    starts = [e.request for e in driver.of(Admitted)]
    assert starts[:6] == ["holder", "small0", "small1", "small2", "x", "y"]


def test_no_bypass_where_none_is_allowed():
    driver = Driver(make_limits(blocks=100, max_bypasses=0))
    driver.submit(make_request("holder", 50 * 32), make_request("blocked", 80 * 32), make_request("small", 10))
    driver.finish()
    assert [e.request for e in driver.of(Admitted)] == ["holder", "blocked", "small"]


def test_a_less_urgent_request_does_not_pass_a_more_urgent_one():
    driver = Driver(make_limits(blocks=100))
    driver.submit(
        make_request("holder", 50 * 32), make_request("blocked", 80 * 32), make_request("small", 10, priority=1)
    )
    driver.finish()
    assert [e.request for e in driver.of(Admitted)] == ["holder", "blocked", "small"]


# ---- preemption ----


def growing(id: str, blocks: int, max_tokens: int = 100, **others):
    """A request whose prompt fills its blocks, so that its first answer token needs one more."""
    return make_request(id, blocks * 32, max_tokens, **others)


def test_the_newest_of_the_lowest_priority_is_preempted_and_comes_back_first():
    driver = Driver(make_limits(blocks=16, watermark=0.0))
    driver.submit(growing("old", 5), growing("new", 5), growing("low", 5, priority=1), growing("least", 1, priority=1))
    driver.step()
    driver.submit(make_request("fresh", 3))
    driver.step()
    assert [(e.request, e.freed_blocks, e.computed_tokens) for e in driver.of(Preempted)] == [
        ("least", 1, 32),
        ("low", 5, 160),
    ]
    assert driver.waiting() == ["fresh", "low", "least"]
    assert driver.running() == ["old", "new"]
    driver.finish()
    assert [e.output_tokens for e in driver.of(Finished)] == [4, 100, 100, 100, 100]


def test_a_preempted_request_comes_back_before_fresh_ones_and_none_of_them_passes_it():
    driver = Driver(make_limits(blocks=11, watermark=0.0))
    driver.submit(growing("a", 5), growing("b", 5))
    driver.step()
    driver.submit(make_request("fresh", 3))
    driver.finish()
    preempted = driver.of(Preempted)[0]
    assert preempted.request == "b"
    later = [(e.request, e.resumed) for e in driver.of(Admitted) if e.at >= preempted.at]
    assert later[0] == ("b", True)


def test_nothing_is_admitted_in_a_step_that_preempted():
    driver = Driver(make_limits(blocks=11, watermark=0.0))
    driver.submit(growing("a", 5), growing("b", 5))
    driver.step()
    driver.submit(make_request("small", 3))
    before = driver.now
    driver.step()
    assert [e.at for e in driver.of(Preempted)] == [before]
    assert not [e for e in driver.of(Admitted) if e.at == before]


def test_a_preempted_request_is_computed_again_and_its_output_goes_on():
    driver = Driver(make_limits(blocks=11, watermark=0.0, prefix_cache=False))
    driver.submit(growing("a", 5, max_tokens=40), growing("b", 5, max_tokens=40))
    driver.finish()
    assert len(driver.of(Preempted)) == 1
    assert len(driver.of(Sampled, "b")) == 40
    assert [e.tokens for e in driver.of(Prefilled, "b")] == [160, 161]
    assert driver.of(Finished, "b")[0].cached_tokens == 0


def test_a_resumed_request_finds_its_own_blocks_again_but_does_not_count_them_as_cached():
    driver = Driver(make_limits(blocks=11, watermark=0.0))
    driver.submit(growing("a", 5, max_tokens=2), growing("b", 5, max_tokens=40))
    driver.finish()
    assert [(e.cached_tokens, e.resumed) for e in driver.of(Admitted, "b")] == [(0, False), (160, True)]
    assert driver.of(Finished, "b")[0].cached_tokens == 0


def test_batch_size_recovers_after_preemptions():
    # public report: sglang#26248, throughput stayed 14 times lower after one retraction
    driver = Driver(make_limits(blocks=60, max_sequences=16))
    driver.submit(*[growing(f"r{i}", 2, max_tokens=150) for i in range(40)])
    sizes = []
    while len(driver.scheduler.waiting) > 4:
        sizes.append(len(driver.step()))
    assert driver.of(Preempted)
    assert min(sizes[5:]) >= 6, "each needs at most 7 of the 60 blocks"
    driver.finish()


def test_an_urgent_arrival_takes_the_place_of_the_least_urgent_when_the_batch_is_full():
    # public report: vllm#40004
    driver = Driver(make_limits(max_sequences=3))
    driver.submit(*[make_request(f"p{p}", 5, max_tokens=50, priority=p) for p in (1, 2, 3)])
    driver.step()
    driver.submit(make_request("urgent", 5, priority=0))
    driver.step(2)
    assert [e.request for e in driver.of(Preempted)] == ["p3"]
    assert sorted(driver.running()) == ["p1", "p2", "urgent"]
    driver.finish()


def test_an_urgent_arrival_gets_blocks_from_the_less_urgent_if_that_is_enough():
    driver = Driver(make_limits(blocks=100, watermark=0.0))
    driver.submit(*[make_request(f"p{i}", 30 * 32 - 20, max_tokens=10, priority=1) for i in range(3)])
    driver.step()
    driver.submit(make_request("urgent", 60 * 32 - 20, priority=0))
    driver.step(2)
    assert [e.request for e in driver.of(Preempted)] == ["p2", "p1"]
    assert driver.running() == ["p0", "urgent"]
    driver.finish()


def test_nobody_is_preempted_for_an_arrival_that_could_not_start_even_then():
    driver = Driver(make_limits(blocks=100))
    driver.submit(
        make_request("equal", 50 * 32, max_tokens=50), make_request("less", 20 * 32, max_tokens=50, priority=1)
    )
    driver.step()
    driver.submit(make_request("urgent", 80 * 32))
    driver.step(5)
    assert driver.of(Preempted) == []
    driver.finish()


def test_equals_do_not_preempt_each_other():
    driver = Driver(make_limits(max_sequences=2))
    driver.submit(*[make_request(f"r{i}", 5, max_tokens=5) for i in range(5)])
    driver.finish()
    assert driver.of(Preempted) == []


# ---- abort ----


def test_abort_in_the_queue_leaves_nothing_behind():
    driver = Driver(make_limits(max_sequences=1))
    driver.submit(make_request("a", 5), make_request("b", 5))
    driver.step()
    driver.abort("b")
    assert driver.of(Finished) == [Finished(1, "b", "abort", 5, 0, 0)]
    driver.finish()
    assert driver.of(Sampled, "b") == []


def test_abort_while_running_frees_the_blocks_at_once():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 100, max_tokens=50))
    driver.step(3)
    driver.abort("a")
    assert driver.of(Finished) == [Finished(3, "a", "abort", 100, 0, 3)]
    assert driver.scheduler.pool.free_blocks == driver.scheduler.pool.blocks
    assert not driver.scheduler.has_work


def test_abort_while_the_step_executes_frees_the_blocks_at_its_end_and_drops_its_token():
    driver = Driver(make_limits(max_sequences=64, max_step_tokens=64))
    driver.submit(make_request("a", 5, max_tokens=50), make_request("b", 5, max_tokens=3))
    driver.submit(make_request("idle", 1000))
    driver.step()
    plan = driver.schedule()
    assert driver.plans[-1].keys() == {"a", "b", "idle"}
    held = driver.scheduler.pool.free_blocks
    driver.abort("a")
    driver.abort("a")
    assert driver.scheduler.pool.free_blocks == held
    driver.update(plan)
    assert driver.of(Finished) == [Finished(2, "a", "abort", 5, 0, 1)]
    assert driver.running() == ["b", "idle"]
    driver.finish()


def test_abort_of_a_running_request_that_has_no_part_in_the_executing_step():
    driver = Driver(make_limits(max_sequences=4, max_step_tokens=4))
    driver.submit(*[make_request(f"r{i}", 20) for i in range(4)])
    plan = driver.schedule()
    idle = (set(driver.running()) - driver.plans[-1].keys()).pop()
    driver.abort(idle)
    driver.update(plan)
    assert [e.request for e in driver.of(Finished)] == [idle]
    driver.finish()


def test_abort_of_a_preempted_request():
    driver = Driver(make_limits(blocks=11, watermark=0.0))
    driver.submit(growing("a", 5), growing("b", 5))
    driver.step(2)
    assert driver.waiting() == ["b"]
    driver.abort("b")
    driver.finish()
    assert [(e.reason, e.output_tokens) for e in driver.of(Finished)] == [("abort", 1), ("length", 100)]


def test_abort_of_an_unknown_or_finished_request_does_nothing():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 5))
    driver.finish()
    events = list(driver.events)
    driver.abort("a")
    driver.abort("never")
    assert driver.events == events


# ---- books ----


def test_check_finds_a_lost_row_and_a_lost_sequence():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 5))
    driver.step()
    row = driver.scheduler._rows.pop()
    with pytest.raises(InvariantError, match="rows are lost"):
        driver.scheduler.check()
    driver.scheduler._rows.append(row)
    driver.scheduler.check()
    driver.scheduler.waiting.append(driver.scheduler.running[0])
    with pytest.raises(InvariantError, match="1 open requests, 2 waiting or running"):
        driver.scheduler.check()


def test_check_finds_a_block_that_can_be_found_before_it_is_written():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 100))
    driver.step()
    driver.scheduler.running[0].table.sealed = 4
    with pytest.raises(InvariantError, match="4 blocks are findable, but only 100 tokens are computed"):
        driver.scheduler.check()


def test_hooks_replace_the_defaults():
    newest_first = replace(Policies(), order=lambda s: (-s.number,), admit=lambda room, limits: room.running < 2)
    driver = Driver(make_limits(), newest_first)
    driver.submit(*[make_request(f"r{i}", 5) for i in range(3)])
    driver.step()
    assert driver.running() == ["r2", "r1"]
    driver.finish()
