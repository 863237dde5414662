from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.runtimes.base import Masks, merged_edits
from lightwell.runtimes.fake import FakeModel, FakeRuntime, slow_reference
from lightwell.sampling.edits import ScoreEditor
from lightwell.sampling.params import SamplingParams
from tests.steps import GREEDY, Chunk, blocks_for, generate, step_of
from tests.tiny import tiny_checkpoint

PROMPT = list(range(100, 180))  # two and a half blocks
TABLE = [5, 1, 3]


def fresh(blocks: int = 12, model: FakeModel | None = None) -> FakeRuntime:
    runtime = FakeRuntime(model)
    runtime.allocate(blocks)
    return runtime


def prefilled() -> FakeRuntime:
    """All of the prompt but its last token is in the cache."""
    runtime = fresh()
    runtime.execute(step_of(Chunk(PROMPT[:-1], 0, TABLE, draw=[])))
    return runtime


def next_token(runtime: FakeRuntime, table: list[int] = TABLE, token: int = PROMPT[-1], position: int = 79) -> int:
    return int(runtime.execute(step_of(Chunk([token], position, table))).tokens[0])


RIGHT = slow_reference(PROMPT, 1)[0]


@given(
    prompt=st.lists(st.integers(0, 999), min_size=1, max_size=100),
    chunk=st.integers(1, 50),
    table=st.permutations(range(5)),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_chunks_and_any_blocks_give_the_slow_reference(
    prompt: list[int], chunk: int, table: list[int], temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed)
    text = generate(fresh(), prompt, 20, params=params, chunk_tokens=chunk, table=table)
    assert text == slow_reference(prompt, 20, params)


def test_right_blocks_give_the_right_token() -> None:
    assert next_token(prefilled()) == RIGHT


def test_swapped_blocks_are_found_out() -> None:
    assert next_token(prefilled(), table=[1, 5, 3]) != RIGHT


def test_a_wrong_block_is_found_out() -> None:
    assert next_token(prefilled(), table=[5, 0, 3]) != RIGHT


def test_a_missing_token_is_found_out() -> None:
    runtime = fresh()
    runtime.execute(step_of(Chunk(PROMPT[:-2], 0, TABLE, draw=[])))
    assert next_token(runtime) != RIGHT


def test_a_block_overwritten_by_another_sequence_is_found_out() -> None:
    runtime = prefilled()
    runtime.execute(step_of(Chunk([7], 0, [1], draw=[])))
    assert next_token(runtime) != RIGHT


def test_a_stale_block_is_found_out() -> None:
    """A block that was given to this sequence but still holds what an earlier one left there."""
    runtime = fresh()
    runtime.execute(step_of(Chunk([7] * 96, 0, TABLE, draw=[])))
    runtime.execute(step_of(Chunk(PROMPT[:32], 0, TABLE, draw=[])))
    runtime.execute(step_of(Chunk(PROMPT[64:-1], 64, TABLE, draw=[])))
    assert next_token(runtime) != RIGHT


def test_a_block_with_the_right_tokens_from_another_context_is_found_out() -> None:
    runtime = prefilled()
    other = [1, *PROMPT[1:64]]
    runtime.execute(step_of(Chunk(other, 0, [8, 9], draw=[])))
    assert next_token(runtime, table=[5, 9, 3]) != RIGHT


def test_a_chunk_computed_over_a_bad_context_stays_bad() -> None:
    runtime = fresh()
    runtime.execute(step_of(Chunk(PROMPT[:64], 0, TABLE, draw=[])))
    runtime.execute(step_of(Chunk(PROMPT[64:-1], 64, [5, 0, 3], draw=[])))
    assert next_token(runtime) != RIGHT


def test_a_slot_that_was_never_written_is_found_out() -> None:
    """Token 0 at position 0 included, the case in which a careless hash would be the zero of an empty store."""
    output = fresh().execute(step_of(Chunk([5], 1, [0])))
    assert output.tokens[0] != slow_reference([0, 5], 1)[0]


def test_wrong_positions_and_tokens_are_found_out() -> None:
    runtime = fresh()
    runtime.execute(step_of(Chunk(PROMPT[1:-1], 1, TABLE, draw=[])))
    assert next_token(runtime) != RIGHT
    assert next_token(prefilled(), token=PROMPT[-1] + 1) != RIGHT
    assert next_token(prefilled(), position=80) != RIGHT


def test_sequences_may_share_a_prefix_block() -> None:
    runtime = prefilled()
    shared = PROMPT[:32]
    output = runtime.execute(step_of(Chunk([PROMPT[-1]], 79, TABLE), Chunk([3, 4], 32, [5, 7]), Chunk([9], 32, [5, 8])))
    expected = [RIGHT, slow_reference([*shared, 3, 4], 1)[0], slow_reference([*shared, 9], 1)[0]]
    assert output.tokens.tolist() == expected


def test_several_rows_of_a_sequence_may_draw() -> None:
    output = fresh().execute(step_of(Chunk(PROMPT, 0, TABLE, draw=[10, 40, -1])))
    assert output.tokens.tolist() == [slow_reference(PROMPT[:n], 1)[0] for n in (11, 41, 80)]


def test_the_seed_matters_only_with_a_temperature() -> None:
    def text(temperature: float, seed: int) -> list[int]:
        return slow_reference(PROMPT, 10, SamplingParams(temperature=temperature, seed=seed))

    assert text(0, 1) == text(0, 2) == slow_reference(PROMPT, 10)
    assert text(1, 1) != text(1, 2)


def test_the_stop_token_comes_about_as_often_as_asked() -> None:
    model = FakeModel(vocab=10_000, stop_token=9, stop_chance=0.25)
    text = slow_reference([1], 2000, model=model)
    assert 400 < text.count(9) < 600
    assert generate(fresh(80, model), [1], 200) == text[:200]


def test_scores_and_logprobs_point_at_the_token() -> None:
    runtime = fresh(model=FakeModel(vocab=50))
    step = step_of(Chunk([1, 2, 3], 0, [0], draw=[1, 2], params=SamplingParams(temperature=0, logprobs=2)))
    logits = np.empty((2, 50), np.float32)
    output = runtime.execute(step, logits)
    assert logits.argmax(axis=1).tolist() == output.tokens.tolist()
    assert output.top_ids is not None
    assert output.top_ids[:, 0].tolist() == output.tokens.tolist()
    assert output.chosen == pytest.approx(1 - np.log(np.e + 49))


def constrained_text(
    runtime: FakeRuntime, prompt: list[int], count: int, params: SamplingParams, **more: Any
) -> list[int]:
    """What the runtime writes with edits and masks made for each step, as an engine would."""
    allowed = more.pop("allowed", lambda answer: None)
    editor, known = ScoreEditor(prompt, params, **more), list(prompt)
    while len(known) < len(prompt) + count:
        start = 0 if len(known) == len(prompt) else len(known) - 1
        step = step_of(Chunk(known[start:], start, range(4), params=params))
        step.sampling.edits = merged_edits([editor.columns()])
        mask = allowed(known[len(prompt) :])
        if mask is not None:
            bits = np.packbits(mask, bitorder="little").view(np.uint32)[None]
            step.sampling.masks = Masks(np.zeros(1, np.int32), bits, lambda: None)
        known.append(int(runtime.execute(step).tokens[0]))
        editor.push(known[-1])
    return known[len(prompt) :]


EVEN = np.arange(64) % 2 == 0


@given(
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=40),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 2**64 - 1),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, 0.6]),
        logit_bias=st.sampled_from([{}, {3: -100.0, 4: 0.9}]),
    ),
    min_tokens=st.integers(0, 20),
    allowed=st.sampled_from([lambda answer: None, lambda answer: EVEN if len(answer) % 3 else None]),
)
def test_edits_and_masks_give_the_slow_reference(prompt: list[int], params: SamplingParams, **more: Any) -> None:
    model = FakeModel(vocab=64, stop_token=9, stop_chance=0.3)
    more["stop_tokens"] = {9}
    text = constrained_text(fresh(model=model), prompt, 20, params, **more)
    assert text == slow_reference(prompt, 20, params, model, **more)
    assert 9 not in text[: more["min_tokens"]]


def test_penalties_and_masks_can_be_seen() -> None:
    model = FakeModel(vocab=8)
    plain = slow_reference([1], 100, GREEDY, model)
    assert len(set(plain)) == 8
    assert slow_reference([1], 100, SamplingParams(temperature=0, logit_bias={5: 3.0}), model) == [5] * 100
    assert 5 not in slow_reference([1], 100, SamplingParams(temperature=0, logit_bias={5: -3.0}), model)
    even = slow_reference([1], 100, GREEDY, model, allowed=lambda answer: np.arange(8) % 2 == 0)
    assert set(even) == {0, 2, 4, 6}
    once = slow_reference([1], 8, SamplingParams(temperature=0, presence_penalty=2.0), model)
    assert sorted(once) == list(range(8))


def test_load_takes_the_vocabulary_of_the_checkpoint() -> None:
    runtime = fresh(model=FakeModel(vocab=2))
    runtime.load(tiny_checkpoint(vocab=77))
    assert max(generate(runtime, [1], 100)) > 50


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([Chunk([1], 0, [-1])], "block table"),
        ([Chunk([1], 0, [12])], "block table"),
        ([Chunk([1] * 33, 0, [0])], "block table"),
        ([Chunk([1000], 0, [0])], "tokens outside"),
        ([Chunk([-1], 0, [0])], "tokens outside"),
        ([Chunk([1], 3, [0]), Chunk([2], 3, [0])], "same slot"),
    ],
)
def test_steps_that_no_runtime_may_be_given_are_refused(chunks: list[Chunk], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fresh().execute(step_of(*chunks))


def test_positions_that_do_not_follow_one_another_are_refused() -> None:
    step = step_of(Chunk([1, 2, 3], 0, [0]))
    step.positions[2] = 5
    with pytest.raises(ValueError, match="not a run"):
        fresh().execute(step)


def test_a_long_prompt_is_quick_enough_for_engine_tests() -> None:
    """Not timed: it would take minutes if a step's work grew with the square of the context."""
    prompt = [i % 1000 for i in range(20_000)]
    assert generate(fresh(blocks_for(20_010)), prompt, 10, chunk_tokens=512) == slow_reference(prompt, 10)
