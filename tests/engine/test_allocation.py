"""When the KV cache is full: queue, preempt or reject; and blocks taken up front against blocks taken as they fill."""

from itertools import product

import pytest
from driving import Driver, make_limits, make_request

from lightwell.engine.options import PolicyOptions, make_policies
from lightwell.events import FREE_BLOCKS, Admitted, Blocked, Finished, Preempted, Rejected, Sampled

CHOICES = list(product(["queue", "preempt", "reject"], ["continuous", "static"], ["paged", "reserved"]))


def driver(blocks: int = 20, max_sequences: int = 16, watermark: float = 0.0, **options) -> Driver:
    limits = make_limits(blocks=blocks, max_sequences=max_sequences, watermark=watermark)
    return Driver(limits, make_policies(PolicyOptions(**options)))


def crowd(count: int = 12, prompt: int = 3 * 32, max_tokens: int = 5 * 32, **others):
    """Requests of which six would start in 20 blocks, though only two can be answered there to their longest."""
    return [make_request(f"r{i}", prompt, max_tokens, **others) for i in range(count)]


def held_blocks(driver: Driver) -> int:
    pool = driver.scheduler.pool
    return pool.blocks - pool.free_blocks


def most_at_once(driver: Driver) -> int:
    return max(len(plan) for plan in driver.plans)


def test_preempt_starts_what_fits_now_and_takes_blocks_away_later():
    run = driver(when_full="preempt")
    run.submit(*crowd())
    run.finish()
    assert most_at_once(run) == 6
    assert run.of(Preempted)
    assert len(run.of(Finished)) == 12
    assert run.of(Rejected) == []


def test_queue_starts_only_what_is_sure_to_fit_and_the_rest_waits_its_turn():
    run = driver(when_full="queue")
    run.submit(*crowd())
    run.finish()
    assert most_at_once(run) == 2
    assert run.of(Preempted) == []
    assert [e.request for e in run.of(Admitted)] == [f"r{i}" for i in range(12)]
    assert Blocked(0, "r2", "blocks", needed_blocks=8, free_blocks=4) in run.of(Blocked)


def test_queue_waits_for_the_urgent_too_and_preempts_nobody():
    run = driver(when_full="queue")
    run.submit(*crowd(2, priority=1))
    run.step()
    run.submit(make_request("urgent", 100, 100))
    run.submit(*crowd(3, priority=1)[2:])
    run.finish()
    assert run.of(Preempted) == []
    assert [e.request for e in run.of(Admitted)][2] == "urgent"


def test_reject_refuses_at_once_what_has_no_blocks_and_preempts_nobody():
    run = driver(when_full="reject")
    run.submit(*crowd(4))
    run.step()
    assert run.of(Rejected) == [Rejected(0, f"r{i}", 8 * 32, 4 * 32, FREE_BLOCKS) for i in (2, 3)]
    assert run.running() == ["r0", "r1"]
    assert run.waiting() == []
    run.finish()
    assert run.of(Preempted) == []
    run.submit(make_request("later", 100, 100))
    run.finish()
    assert run.of(Finished, "later")


def test_reject_lets_wait_for_a_place_in_the_batch_what_has_blocks():
    run = driver(when_full="reject", max_sequences=1)
    run.submit(make_request("a", 10, 5), make_request("b", 10, 5))
    run.finish()
    assert run.of(Rejected) == []
    assert [e.request for e in run.of(Finished)] == ["a", "b"]
    assert [(e.request, e.reason) for e in run.of(Blocked)] == [("b", "sequences")]


def test_reject_refuses_nothing_that_a_client_has_seen_a_part_of():
    run = driver(when_full="reject")
    run.submit(*crowd(2))
    tokens = run.scheduler.waiting[0].request.tokens
    run.submit(make_request("goes-on", 90, 100, answer=[5, 6]), make_request("choice", tokens, 100, fork_of="r0"))
    run.finish()
    assert run.of(Rejected) == []
    assert len(run.of(Finished)) == 4


def test_reserved_takes_the_blocks_of_the_longest_answer_when_it_starts():
    paged, reserved = driver(), driver(kv_allocation="reserved")
    for run in (paged, reserved):
        run.submit(make_request("a", 40, max_tokens=4 * 32))
        run.step()
    assert (held_blocks(paged), held_blocks(reserved)) == (2, 6)
    reserved.step(3)
    assert held_blocks(reserved) == 6


def test_the_longest_answer_needs_no_place_for_its_last_token():
    run = driver(kv_allocation="reserved")
    run.submit(make_request("a", 32, max_tokens=33))
    run.step()
    assert held_blocks(run) == 2
    run.finish()


@pytest.mark.parametrize(("when_full", "batching", "kv_allocation"), CHOICES)
def test_any_combination_answers_everything_that_it_takes(when_full: str, batching: str, kv_allocation: str):
    run = driver(when_full=when_full, batching=batching, kv_allocation=kv_allocation)
    for number, request in enumerate(crowd(12, prompt=40, max_tokens=90)):
        run.submit(request)
        if number % 3:
            run.step(number % 3)
    run.finish()
    refused = {e.request for e in run.of(Rejected)}
    assert {e.request for e in run.of(Finished)} == {f"r{i}" for i in range(12)} - refused
    assert all(len(run.of(Sampled, f"r{i}")) == 90 for i in range(12) if f"r{i}" not in refused)
    assert bool(refused) == (when_full == "reject")
    if when_full != "preempt" or kv_allocation == "reserved":
        assert run.of(Preempted) == []


# ---- static batching ----


def test_static_batching_runs_a_batch_to_its_end_before_the_next():
    run = driver(batching="static", max_sequences=3)
    run.submit(*[make_request(f"r{i}", 5, max_tokens=n) for i, n in enumerate([2, 9, 4, 3, 5])])
    run.finish()
    assert [(e.request, e.at) for e in run.of(Admitted)] == [("r0", 0), ("r1", 0), ("r2", 0), ("r3", 9), ("r4", 9)]
    assert [(e.request, e.reason, e.at) for e in run.of(Blocked)] == [("r3", "sequences", 0), ("r3", "batch", 1)]


def test_a_request_that_arrives_beside_a_static_batch_waits_for_the_next():
    run = driver(batching="static")
    run.submit(make_request("a", 5, max_tokens=6))
    run.step(2)
    run.submit(make_request("b", 5, max_tokens=1), make_request("c", 5, max_tokens=1, priority=-1))
    run.finish()
    assert [(e.request, e.at) for e in run.of(Admitted)] == [("a", 0), ("c", 6), ("b", 6)]
    assert run.of(Preempted) == []


def test_one_that_was_preempted_comes_back_to_its_static_batch():
    run = driver(batching="static", blocks=11)
    run.submit(make_request("a", 5 * 32, 60), make_request("b", 5 * 32, 60))
    run.step()
    run.submit(make_request("next", 5, 2))
    run.finish()
    (preempted,) = run.of(Preempted)
    assert preempted.request == "b"
    assert [e.request for e in run.of(Admitted)] == ["a", "b", "b", "next"]


def idle_slot_steps(batching: str, answers: dict[str, int]) -> int:
    run = driver(batching=batching, max_sequences=4)
    run.submit(*[make_request(id, 5, max_tokens=tokens) for id, tokens in answers.items()])
    run.finish()
    return sum(4 - len(plan) for plan in run.plans[:10])


def test_four_slots_over_ten_steps():
    answers = {"A": 10, "B": 4, "C": 6, "D": 3, "G": 7, "E": 6, "F": 4}
    assert (idle_slot_steps("static", answers), idle_slot_steps("continuous", answers)) == (4 * 10 - 23, 0)
