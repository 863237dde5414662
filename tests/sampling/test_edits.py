import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.sampling.edits import Edits, ScoreEditor, needs_edits
from lightwell.sampling.params import SamplingParams

TOKENS = st.integers(0, 12)
NUMBERS = st.sampled_from([0.0, 0.0, -1.5, 0.25, 2.0])
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    frequency_penalty=NUMBERS,
    presence_penalty=NUMBERS,
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -0.75, 3.0, 100.0]), max_size=4),
)
Changes = dict[int, tuple[float, float]]


def changes(edits: Edits) -> Changes:
    """Factor and addend by token, where they are not 1 and 0."""
    assert [column.dtype for column in edits] == [np.int32, np.float32, np.float32]
    columns = [column.tolist() for column in edits]
    assert len(set(columns[0])) == len(columns[0]), "a token twice"
    rows = zip(*columns, strict=True)
    return {token: (factor, addend) for token, factor, addend in rows if (factor, addend) != (1, 0)}


def expected(
    prompt: list[int], answer: list[int], params: SamplingParams, min_tokens: int = 0, stop_tokens: tuple[int, ...] = ()
) -> Changes:
    """The definitions of SamplingParams, token by token of the vocabulary."""
    counts, found = Counter(answer), {}
    for token in range(13):
        factor = params.repetition_penalty if token in prompt or token in answer else 1.0
        addend = params.logit_bias.get(token, 0.0) - params.frequency_penalty * counts[token]
        addend -= params.presence_penalty if token in answer else 0.0
        if token in stop_tokens and len(answer) < min_tokens:
            addend = -math.inf
        if (factor, addend) != (1, 0):
            found[token] = (float(np.float32(factor)), addend)
    return found


@given(
    prompt=st.lists(TOKENS, max_size=10),
    answer=st.lists(TOKENS, max_size=10),
    known=st.integers(0, 10),
    extra=st.lists(TOKENS, max_size=5),
    params=PARAMS,
    min_tokens=st.integers(0, 14),
    stop_tokens=st.lists(TOKENS, max_size=3).map(tuple),
)
def test_edits_are_those_of_the_definition_at_every_token(
    prompt: list[int], answer: list[int], known: int, extra: list[int], params: SamplingParams, **stops: Any
) -> None:
    """Whatever part of the answer was known at first, and for proposed tokens, which leave no trace."""
    editor = ScoreEditor(prompt, params, answer=answer[:known], **stops)
    for length in range(min(known, len(answer)), len(answer) + 1):
        if length > known:
            editor.push(answer[length - 1])
        for supposed in ([], extra[:1], extra, []):
            after = changes(editor.columns(supposed))
            assert after == expected(prompt, answer[:length] + supposed, params, **stops)
            assert not after or needs_edits(params, **stops)


def test_a_long_answer_keeps_its_counts() -> None:
    editor = ScoreEditor([], SamplingParams(frequency_penalty=0.5, repetition_penalty=2))
    for token in [*range(1000), *range(500)]:
        editor.push(token)
    assert changes(editor.columns()) == {token: (2, -1 if token < 500 else -0.5) for token in range(1000)}


@pytest.mark.parametrize(
    ("params", "stops", "needed"),
    [
        (SamplingParams(), {}, False),
        (SamplingParams(temperature=0, top_k=3, min_p=0.2), {"stop_tokens": {2}}, False),
        (SamplingParams(), {"min_tokens": 3}, False),
        (SamplingParams(), {"min_tokens": 3, "stop_tokens": {2}}, True),
        (SamplingParams(repetition_penalty=1.1), {}, True),
        (SamplingParams(frequency_penalty=-0.1), {}, True),
        (SamplingParams(presence_penalty=0.1), {}, True),
        (SamplingParams(logit_bias={1: 1.0}), {}, True),
    ],
)
def test_who_needs_edits(params: SamplingParams, stops: dict[str, Any], needed: bool) -> None:
    assert needs_edits(params, **stops) == needed
