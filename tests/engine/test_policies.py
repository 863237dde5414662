"""The hooks, each alone: limits, the order of the queue, admission, budgets and how they are split."""

import pytest
from driving import make_limits, make_request
from hypothesis import given
from hypothesis import strategies as st

from lightwell.engine.cost_model import Load
from lightwell.engine.dial import within_itl
from lightwell.engine.policies import (
    Moment,
    Room,
    SchedulerLimits,
    by_priority,
    short_first,
    whole_prompt_and_watermark,
    whole_step,
)
from lightwell.engine.sequence import Sequence
from lightwell.errors import StartupError
from lightwell.kv.block_pool import BlockPool

POOL = BlockPool(1)


def sequence(number: int, tokens: int = 10, computed: int = 0, priority: int = 0, preemptions: int = 0) -> Sequence:
    request = make_request(str(number), tokens, priority=priority)
    return Sequence(request, number, 0.0, POOL.new_table(), computed=computed, preemptions=preemptions)


@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": 0},
        {"context_tokens": 0},
        {"block_tokens": 0},
        {"max_sequences": 0},
        {"max_sequences": 64, "max_step_tokens": 63},
        {"watermark": 1.0},
        {"watermark": -0.1},
        {"max_bypasses": -1},
    ],
)
def test_limits_under_which_nothing_could_run_are_refused(wrong):
    with pytest.raises(StartupError):
        SchedulerLimits(**{"blocks": 10, "context_tokens": 100} | wrong)


def test_the_queue_is_ordered_by_priority_then_preempted_first_then_arrival():
    queue = [sequence(3), sequence(1), sequence(5, preemptions=1), sequence(6, priority=-1), sequence(0, priority=1)]
    assert [s.number for s in sorted(queue, key=by_priority)] == [6, 5, 1, 3, 0]


def test_admission_keeps_the_watermark_free_except_for_the_only_one():
    limits = make_limits(blocks=100, watermark=0.05)
    assert whole_prompt_and_watermark(Room(needed=15, available=20, running=1), limits)
    assert not whole_prompt_and_watermark(Room(needed=16, available=20, running=1), limits)
    assert whole_prompt_and_watermark(Room(needed=100, available=100, running=0), limits)
    assert not whole_prompt_and_watermark(Room(needed=101, available=100, running=0), limits)


def test_prefill_gets_what_decoding_leaves():
    assert whole_step(moment(12, [], max_step_tokens=512)) == 500


def moment(decoding: int, prefilling: list[Sequence], now: float = 0.0, **limits) -> Moment:
    return Moment(now, [sequence(i, 100, computed=99) for i in range(decoding)], prefilling, make_limits(**limits))


class Linear:
    """A cost model that nothing has to be learned for."""

    def step_seconds(self, load: Load) -> float:
        return 0.005 + 0.001 * load.decoding + 0.0001 * load.prefill


def milliseconds(decoding: int, prefill_tokens: int) -> float:
    return Linear().step_seconds(Load(decoding, 0, prefill_tokens, 0))


@pytest.mark.parametrize(("decoding", "tokens"), [(0, 512), (1, 140), (10, 50), (14, 10), (40, 1)])
def test_the_itl_budget_is_the_largest_that_keeps_the_step_within_its_target(decoding: int, tokens: int):
    budget = within_itl(0.02 + 1e-9, Linear())(moment(decoding, [sequence(0, 9000)], max_step_tokens=512))
    assert budget == tokens
    if 1 < budget < 512:
        assert milliseconds(decoding, budget) <= 0.02 + 1e-9 < milliseconds(decoding, budget + 1)


def shares(budget: int, *sequences: Sequence) -> dict[int, int]:
    return {s.number: n for s, n in short_first(budget, moment(0, list(sequences)))}


def test_a_short_prompt_goes_before_a_long_one_that_came_first():
    assert shares(512, sequence(0, 10_000), sequence(1, 10)) == {1: 10, 0: 502}


def test_the_first_to_arrive_keeps_half_of_the_budget():
    many_short = [sequence(i, 100) for i in range(1, 9)]
    assert shares(512, sequence(0, 10_000), *many_short) == {1: 100, 2: 100, 3: 32, 4: 24, 0: 256}


def test_equal_prompts_are_taken_in_their_order():
    assert shares(512, *[sequence(i, 200) for i in range(4)]) == {0: 200, 1: 200, 2: 96, 3: 16}


def test_a_more_urgent_class_comes_first_whatever_its_length():
    assert shares(512, sequence(0, 10), sequence(1, 500, priority=-1)) == {1: 500, 0: 10}
    assert shares(512, sequence(0, 10), sequence(1, 600, priority=-1)) == {1: 512}


def test_a_chunk_ends_with_a_block_where_it_can():
    other = sequence(1, 500)
    assert shares(40, sequence(0, 100, computed=30), other) == {0: 34, 1: 6}
    assert shares(40, sequence(0, 100, computed=90), other) == {0: 10, 1: 30}, "or with the prompt"
    assert shares(20, sequence(0, 100, computed=32), other) == {0: 20}, "or where the budget is less than a block"
    assert shares(40, sequence(0, 100, computed=30)) == {0: 40}, "but nothing of the budget is left over"


@given(
    budget=st.integers(1, 300),
    prompts=st.lists(st.tuples(st.integers(2, 400), st.integers(0, 400), st.integers(-1, 1)), min_size=1, max_size=8),
)
def test_any_split_stays_within_budget_and_always_moves_the_first_to_arrive(budget, prompts):
    made = [sequence(i, n, computed=min(done, n - 1), priority=p) for i, (n, done, p) in enumerate(prompts)]
    split = short_first(budget, moment(0, made))
    assert len({s.number for s, _ in split}) == len(split)
    assert sum(tokens for _, tokens in split) == min(budget, sum(s.remaining for s in made))
    assert all(0 < tokens <= s.remaining for s, tokens in split)
    oldest = min(made, key=lambda s: s.urgency)
    given_to_oldest = {s.number: tokens for s, tokens in split}.get(oldest.number, 0)
    fair = min(oldest.remaining, (budget + 1) // 2)
    assert given_to_oldest == fair or given_to_oldest > max(0, fair - 32)
