import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightwell.runtimes.base import (
    Masks,
    allowed_in_row,
    edits_of_row,
    merged_edits,
    params_of_row,
    sampling_rows,
)
from lightwell.sampling.edits import Edits
from lightwell.sampling.params import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2, width=32),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
)
EDITS = st.lists(st.tuples(st.integers(0, 9), st.floats(0.5, 2, width=32), st.floats(-9, 9, width=32))).map(
    lambda rows: Edits(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.float32),
    )
)


@given(st.lists(st.tuples(PARAMS, st.integers(0, 2**31 - 1))))
def test_rows_hold_what_the_requests_asked(rows: list[tuple[SamplingParams, int]]) -> None:
    columns = sampling_rows([params for params, _ in rows], [position for _, position in rows])
    assert columns.positions.tolist() == [position for _, position in rows]
    assert [params_of_row(columns, i) for i in range(len(rows))] == [params for params, _ in rows]


@given(st.lists(st.none() | EDITS))
def test_merged_edits_are_found_again_by_row(rows: list[Edits | None]) -> None:
    columns = sampling_rows([SamplingParams()] * len(rows), range(len(rows)))
    columns.edits = merged_edits(rows)
    assert [column.dtype for column in (columns.edits.starts, columns.edits.tokens)] == [np.int32, np.int32]
    assert [column.dtype for column in (columns.edits.factors, columns.edits.addends)] == [np.float32, np.float32]
    for i, edits in enumerate(rows):
        found = edits_of_row(columns, i)
        assert (found is None) == (edits is None or len(edits.tokens) == 0)
        if found is not None and edits is not None:
            assert all(np.array_equal(a, b) for a, b in zip(found, edits, strict=True))


def test_a_step_without_edits_or_masks_has_none_in_any_row() -> None:
    columns = sampling_rows([SamplingParams()], [3])
    assert edits_of_row(columns, 0) is None
    assert allowed_in_row(columns, 0, 40) is None


@given(st.data(), st.integers(1, 100))
def test_bit_t_of_a_mask_allows_token_t(data: st.DataObject, vocab: int) -> None:
    allowed = data.draw(st.sets(st.integers(0, vocab - 1)))
    bits = np.full((3, -(-vocab // 32)), 2**32 - 1, np.uint32)
    for token in set(range(vocab)) - allowed:
        bits[1, token // 32] -= np.uint32(1 << token % 32)
    columns = sampling_rows([SamplingParams()] * 2, [0, 0])
    columns.masks = Masks(np.array([-1, 1], np.int32), bits, lambda: None)
    assert allowed_in_row(columns, 0, vocab) is None
    mask = allowed_in_row(columns, 1, vocab)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == sorted(allowed)
    assert len(mask) == vocab
