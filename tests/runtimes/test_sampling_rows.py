from hypothesis import given
from hypothesis import strategies as st

from lightwell.runtimes.base import params_of_row, sampling_rows
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


@given(st.lists(st.tuples(PARAMS, st.integers(0, 2**31 - 1))))
def test_rows_hold_what_the_requests_asked(rows: list[tuple[SamplingParams, int]]) -> None:
    columns = sampling_rows([params for params, _ in rows], [position for _, position in rows])
    assert columns.positions.tolist() == [position for _, position in rows]
    assert [params_of_row(columns, i) for i in range(len(rows))] == [params for params, _ in rows]
