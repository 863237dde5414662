"""Steps whose rows have edits, masks and given tokens: every runtime, and the native one as the definition says."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.checkpoints import open_checkpoint
from lightwell.runtimes.base import Masks, Runtime, ScoreEdits, StepInput, merged_edits, sampling_rows
from lightwell.runtimes.cpu import CpuRuntime, _native
from lightwell.runtimes.fake import FakeRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.runtimes.reference.drawing import draw
from lightwell.sampling.edits import Edits, ScoreEditor
from lightwell.sampling.params import SamplingParams
from lightwell.sampling.reference import log_probabilities
from lightwell.text import load_tokenizer
from lightwell.text.tokenizer import Tokenizer
from tests.steps import GREEDY, Chunk, blocks_for, generate, step_of
from tests.tiny import examples, tiny_checkpoint

Bits = npt.NDArray[np.uint32]
VOCAB = 101
CHECKPOINT = tiny_checkpoint(vocab=VOCAB)
RUNTIMES = [CpuRuntime, ReferenceRuntime, FakeRuntime]
every_runtime = pytest.mark.parametrize("kind", RUNTIMES)


def loaded(kind: type[Runtime], isa: str | None = None) -> Runtime:
    with pytest.MonkeyPatch.context() as patch:
        if isa:
            patch.setenv("LIGHTWELL_CPU_ISA", isa)
        runtime = kind(threads=2) if kind is CpuRuntime else kind()
    runtime.load(CHECKPOINT)
    runtime.allocate(16)
    return runtime


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def step_with(rows: list[int], params: list[SamplingParams] | None = None, **more: Any) -> StepInput:
    """One sequence of 40 tokens, with these logit rows."""
    step = step_of(Chunk(random_tokens(40), 0, [3, 5]))
    sampling = sampling_rows(params or [GREEDY] * len(rows), [row + 1 for row in rows])
    return replace(step, logit_rows=np.array(rows, np.int32), sampling=replace(sampling, **more))


def bits(*allowed: set[int]) -> Bits:
    found = np.zeros((len(allowed), -(-VOCAB // 32)), np.uint32)
    for row, tokens in zip(found, allowed, strict=True):
        for token in tokens:
            row[token // 32] |= np.uint32(1 << token % 32)
    return found


def masks(rows: list[int], *allowed: set[int]) -> Masks:
    return Masks(np.array(rows, np.int32), bits(*allowed), lambda: None)


def addends(changes: dict[int, float]) -> Edits:
    return Edits(
        np.array(list(changes), np.int32), np.ones(len(changes), np.float32), np.array(list(changes.values()), "f4")
    )


# What every runtime does


@every_runtime
@pytest.mark.parametrize("sequences", [0, 1, 3])
def test_a_step_without_tokens_is_nothing_to_do(kind: type[Runtime], sequences: int) -> None:
    nothing = StepInput(
        tokens=np.zeros(0, np.int32),
        positions=np.zeros(0, np.int32),
        starts=np.zeros(sequences + 1, np.int32),
        block_tables=np.full((sequences, 2), -1, np.int32),
        logit_rows=np.zeros(0, np.int32),
        sampling=sampling_rows([], []),
    )
    output = loaded(kind).execute(nothing, np.empty((0, VOCAB), np.float32))
    assert output.tokens.shape == (0,)
    assert output.tokens.dtype == np.int32
    assert output.chosen is None


@every_runtime
def test_rows_with_a_given_token_report_it_and_the_others_draw(kind: type[Runtime]) -> None:
    rows, given = [3, 4, 5, 39], np.array([7, -1, 100, -1], np.int32)
    params = [SamplingParams(temperature=0, logprobs=2)] * 4
    logits = np.empty((4, VOCAB), np.float32)
    plain = loaded(kind).execute(step_with(rows, params), logits)
    output = loaded(kind).execute(step_with(rows, params, given=given))
    assert output.tokens.tolist() == [7, plain.tokens[1], 100, plain.tokens[3]]
    assert output.chosen is not None
    expected = [log_probabilities(row)[token] for row, token in zip(logits, output.tokens, strict=True)]
    assert output.chosen == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(output.top_ids, plain.top_ids)


@every_runtime
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_biases_and_masks_decide(kind: type[Runtime], temperature: float) -> None:
    rows, params = [0, 10, 10, 39], [SamplingParams(temperature=temperature, seed=5)] * 4
    (plain,) = loaded(kind).execute(step_with([39], params[:1])).tokens
    edits = merged_edits([addends({70: 1000.0}), None, addends({8: 1000.0, 9: 500.0}), addends({plain: -math.inf})])
    step = step_with(rows, params, edits=edits, masks=masks([-1, 1, 0, -1], {9, 96}, {100}))
    output = loaded(kind).execute(step)
    assert output.tokens[:3].tolist() == [70, 100, 9]
    assert output.tokens[3] != plain


@every_runtime
def test_log_probabilities_and_scores_are_those_before_edits_and_masks(kind: type[Runtime]) -> None:
    rows, params = [5, 39], [SamplingParams(temperature=0, logprobs=3)] * 2
    logits = np.empty((2, 2, VOCAB), np.float32)
    plain = loaded(kind).execute(step_with(rows, params), logits[0])
    changes = {"edits": merged_edits([addends({70: 1000.0}), None]), "masks": masks([-1, 0], {4})}
    output = loaded(kind).execute(step_with(rows, params, **changes), logits[1])
    assert output.tokens.tolist() == [70, 4]
    assert np.array_equal(logits[0], logits[1])
    assert np.array_equal(output.top, plain.top)
    assert output.chosen is not None
    expected = [log_probabilities(row)[token] for row, token in zip(logits[0], (70, 4), strict=True)]
    assert output.chosen == pytest.approx(expected, abs=1e-5)


@every_runtime
def test_a_row_may_be_drawn_from_several_times(kind: type[Runtime]) -> None:
    params = [SamplingParams(temperature=2, seed=seed) for seed in range(20)]
    step = step_with([39] * 20, params)
    each = [loaded(kind).execute(step_with([39], [p])).tokens[0] for p in params]
    assert loaded(kind).execute(step).tokens.tolist() == each
    assert len(set(each)) > 5


@every_runtime
@pytest.mark.parametrize("rows", [[39], sorted([*range(40)] * 3)])
def test_masks_are_waited_for_once_and_may_be_written_by_then(kind: type[Runtime], rows: list[int]) -> None:
    runtime, waited = loaded(kind), []
    late = masks([0] * len(rows), set())

    def wait() -> None:
        waited.append(True)
        late.bits[:] = bits({42})

    output = runtime.execute(step_with(rows, masks=replace(late, wait=wait)))
    assert waited == [True]
    assert output.tokens.tolist() == [42] * len(rows)


def test_all_layers_are_computed_before_masks_are_waited_for() -> None:
    runtime = CpuRuntime(threads=2)
    runtime.load(CHECKPOINT)
    runtime.allocate(16)
    spent: list[dict[str, float]] = []
    runtime.execute(step_with([39], masks=replace(masks([0], {1}), wait=lambda: spent.append(runtime.profile()))))
    (before,), after = spent, runtime.profile()
    assert before.keys() == after.keys()
    assert [kind for kind in before if before[kind] != after[kind]] == ["logits"]
    assert all(seconds > 0 for seconds in before.values())


@every_runtime
def test_nobody_waits_for_masks_where_nothing_is_drawn(kind: type[Runtime]) -> None:
    def wait() -> None:
        raise AssertionError("waited")

    loaded(kind).execute(step_with([], masks=replace(masks([]), wait=wait)))


@every_runtime
def test_what_waiting_raises_ends_the_step_and_only_that(kind: type[Runtime]) -> None:
    def wait() -> None:
        raise KeyError("no mask today")

    runtime = loaded(kind)
    with pytest.raises(KeyError, match="no mask today"):
        runtime.execute(step_with([39], masks=replace(masks([0], {1}), wait=wait)))
    assert runtime.execute(step_with([39])).tokens == loaded(kind).execute(step_with([39])).tokens


# The native runtime, in the float mode of its steps

native = cache(lambda isa: loaded(CpuRuntime, isa))
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.5, 0.9]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 4),
)
TOKENS = st.integers(0, VOCAB - 1)
EDITS = st.dictionaries(
    TOKENS,
    st.tuples(
        st.sampled_from([1.0, 1.25, 0.5]) | st.floats(2**-120, 2**120, width=32),
        st.sampled_from([0.0, -math.inf, 1e-40]) | st.floats(-100, 100, width=32),
    ),
).map(
    lambda changes: Edits(
        np.array(list(changes), np.int32),
        np.array([factor for factor, _ in changes.values()], np.float32),
        np.array([addend for _, addend in changes.values()], np.float32),
    )
)
MASKS = st.frozensets(TOKENS, max_size=3) | st.frozensets(TOKENS, min_size=50)
ROWS = st.tuples(st.integers(0, 39), PARAMS, st.none() | EDITS, st.none() | MASKS, st.just(-1) | st.just(-1) | TOKENS)


@pytest.mark.parametrize("isa", _native.available_isas())
@examples(40)
@given(rows=st.lists(ROWS, min_size=1, max_size=70).map(lambda rows: sorted(rows, key=lambda row: row[0])))
def test_rows_of_all_kinds_are_drawn_as_the_definition_says(isa: str, rows: list[Any]) -> None:
    sets = [set(row[3]) for row in rows if row[3] is not None]
    places = iter(range(len(sets)))
    step = step_with(
        [row[0] for row in rows],
        [row[1] for row in rows],
        edits=merged_edits([row[2] for row in rows]),
        masks=masks([-1 if row[3] is None else next(places) for row in rows], *sets),
        given=np.array([row[4] for row in rows], np.int32),
    )
    logits = np.empty((len(rows), VOCAB), np.float32)
    output = native(isa).execute(step, logits)
    expected = draw(logits, step.sampling, started=0)
    assert output.tokens.tolist() == expected.tokens.tolist()
    for i in np.flatnonzero(step.sampling.logprobs >= 0):
        count = step.sampling.logprobs[i]
        assert output.chosen[i] == pytest.approx(expected.chosen[i], abs=1e-5)
        assert output.top_ids[i, :count].tolist() == expected.top_ids[i, :count].tolist()


ONE = bits({1})


def edited(starts: Any = (0, 1, 2), tokens: Any = (1, 2), factors: Any = (1, 1), addends: Any = (0, 0)) -> StepInput:
    columns = (np.array(column, np.float32) for column in (factors, addends))
    return step_with([1, 39], edits=ScoreEdits(np.array(starts, np.int32), np.array(tokens, np.int32), *columns))


def masked(rows: Any = (0, -1), allowed: Any = ONE) -> StepInput:
    return step_with([1, 39], masks=Masks(np.array(rows, np.int32), allowed, lambda: None))


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (step_with([1, 39], given=np.array([VOCAB, -1], np.int32)), r"given\[0\] is 101"),
        (step_with([1, 39], given=np.array([0, -2], np.int32)), r"given\[1\] is -2"),
        (step_with([1, 39], given=np.array([0], np.int32)), "given must be"),
        (edited(tokens=[1, VOCAB]), r"edit tokens\[1\] is 101"),
        (edited(tokens=[-1, 2]), r"edit tokens\[0\] is -1"),
        (edited(starts=[1, 1, 2]), r"edit starts\[0\] is 1"),
        (edited(starts=[0, -1, 2]), r"edit starts\[1\] is -1"),
        (edited(starts=[0, 2, 1]), r"edit starts\[2\] is 1"),
        (edited(starts=[0, 1, 1]), r"edit starts\[2\] is 1, but there are 2 edits"),
        (edited(starts=[0, 3, 3]), r"edit starts\[1\] is 3"),
        (edited(starts=[0, 2]), "edit starts must be"),
        (edited(factors=[1]), "edit factors must be"),
        (edited(addends=[1, 2, 3]), "edit addends must be"),
        (edited(factors=[1, 0]), r"edit factors\[1\]"),
        (edited(factors=[-1, 1]), r"edit factors\[0\]"),
        (edited(factors=[np.nan, 1]), r"edit factors\[0\]"),
        (edited(factors=[1, np.inf]), r"edit factors\[1\]"),
        (edited(factors=[1, 1e-40]), r"edit factors\[1\]"),
        (edited(addends=[np.nan, 0]), r"edit addends\[0\]"),
        (edited(addends=[0, np.inf]), r"edit addends\[1\]"),
        (masked(rows=[1, 0]), r"mask rows\[0\] is 1"),
        (masked(rows=[0, -2]), r"mask rows\[1\] is -2"),
        (masked(rows=[0]), "mask rows must be"),
        (masked(allowed=ONE[:, :3]), "mask bits must be"),
        (masked(allowed=ONE[:0]), r"mask rows\[0\] is 0"),
        (masked(allowed=ONE.astype(np.int64)), "mask bits must be"),
    ],
)
def test_bad_edits_masks_and_given_tokens_are_refused(step: StepInput, complaint: str) -> None:
    runtime = native(_native.available_isas()[0])
    with pytest.raises(ValueError, match=complaint):
        runtime.execute(step)


# The default model

Model = tuple[Runtime, Tokenizer]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Model:
    checkpoint = open_checkpoint(smollm2)
    runtime = CpuRuntime(threads=2)
    runtime.load(checkpoint)
    runtime.allocate(32)
    return runtime, load_tokenizer(checkpoint)


def answer(model: Model, text: str, count: int, min_tokens: int = 0, **asked: Any) -> list[int]:
    """The tokens that follow, with edits made as the sequence grows."""
    runtime, tokenizer = model
    prompt, params = tokenizer.encode(text, special=True), SamplingParams(temperature=0, **asked)
    editor = ScoreEditor(prompt, params, min_tokens, tokenizer.stop_ids)
    known, table = list(prompt), range(blocks_for(len(prompt) + count))
    while len(known) < len(prompt) + count and not (known[-1] in tokenizer.stop_ids and len(known) > len(prompt)):
        start = 0 if len(known) == len(prompt) else len(known) - 1
        step = step_of(Chunk(known[start:], start, table))
        step.sampling.edits = merged_edits([editor.columns()])
        known.append(int(runtime.execute(step).tokens[0]))
        editor.push(known[-1])
    return known[len(prompt) :]


CATS = "The cat sat. The cat sat. The cat sat. The cat"


@pytest.mark.slow
def test_penalties_end_a_repetition(model: Model) -> None:
    plain = answer(model, CATS, 40)
    assert plain == generate(model[0], model[1].encode(CATS, special=True), 40)
    most = max(plain.count(token) for token in plain)
    assert most >= 8
    for penalty in ({"frequency_penalty": 2.0}, {"repetition_penalty": 1.5}, {"presence_penalty": 2.0}):
        penalized = answer(model, CATS, 40, **penalty)
        assert max(penalized.count(token) for token in penalized) <= 3, penalty


@pytest.mark.slow
def test_a_bias_forces_or_bans_a_token_and_min_tokens_keeps_the_answer_going(model: Model) -> None:
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    paris = model[1].encode(" Paris", special=False)[0]
    plain = answer(model, question, 60)
    assert paris in plain
    assert len(plain) < 30
    assert plain[-1] in model[1].stop_ids
    assert paris not in answer(model, question, 30, logit_bias={paris: -100.0})
    assert answer(model, question, 5, logit_bias={paris: 100.0}) == [paris] * 5
    longer = answer(model, question, 60, min_tokens=30)
    assert longer[: len(plain) - 1] == plain[:-1]
    assert len(longer) >= 31
