"""Copies of KV blocks, in memory and through the offload file: all runtimes do them in order and before computing."""

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.runtimes.base import Runtime, StepInput
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.fake import FakeRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from tests.steps import Chunk, step_of
from tests.tiny import examples, tiny_checkpoint

BLOCKS, SLOTS, VOCAB = 8, 4, 100
RUNTIMES = {
    "fake": FakeRuntime,
    "reference": ReferenceRuntime,
    "cpu-f16": lambda: CpuRuntime(threads=2, kv_cache_dtype="f16"),
    "cpu-int8": lambda: CpuRuntime(threads=2, kv_cache_dtype="int8"),
}
PROMPT = [(7 * i * i + 3) % VOCAB for i in range(70)]
TABLE = [5, 1, 3]

each_runtime = pytest.mark.parametrize("kind", RUNTIMES)


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


def loaded(kind: str, file: BinaryIO | None = None, **shape: int) -> Runtime:
    runtime = RUNTIMES[kind]()
    report = runtime.load(tiny_checkpoint(**shape))
    runtime.allocate(BLOCKS)
    if file is not None:
        file.truncate(SLOTS * report.kv_bytes_per_block)
        runtime.offload_to(file, SLOTS)
    return runtime


def prefilled(kind: str, file: BinaryIO | None = None, **shape: int) -> Runtime:
    runtime = loaded(kind, file, **shape)
    runtime.execute(step_of(Chunk(PROMPT[:-1], 0, TABLE, draw=[])))
    return runtime


def scores(runtime: Runtime, table: list[int] = TABLE, copies: list[tuple[int, int]] | None = None) -> npt.NDArray:
    """After the prompt's last token; by now the rest of it should be in the table's blocks."""
    logits = np.empty((1, VOCAB), np.float32)
    runtime.execute(copying(step_of(Chunk([PROMPT[-1]], len(PROMPT) - 1, table)), copies or []), logits)
    return logits


def copying(step: StepInput, copies: list[tuple[int, int]]) -> StepInput:
    step.copies = np.array(copies, np.int32).reshape(-1, 2)
    return step


def overwrite(runtime: Runtime, blocks: list[int], copies: list[tuple[int, int]] | None = None) -> None:
    """Compute something else into these blocks, after the copies."""
    step = step_of(Chunk([9] * (32 * len(blocks)), 0, blocks, draw=[]))
    runtime.execute(copying(step, copies or []))


@each_runtime
def test_a_copy_is_as_good_as_the_block(kind: str) -> None:
    expected = scores(prefilled(kind))
    runtime = prefilled(kind)
    assert np.array_equal(scores(runtime, [5, 7, 0], [(1, 7), (3, 0)]), expected)
    overwrite(runtime, [1, 3])
    assert np.array_equal(scores(runtime, [5, 7, 0]), expected)
    assert not np.array_equal(scores(runtime), expected)


@each_runtime
def test_a_step_without_copies_takes_an_empty_list(kind: str) -> None:
    assert np.array_equal(scores(prefilled(kind), copies=[]), scores(prefilled(kind)))


@each_runtime
def test_copies_are_done_in_order(kind: str) -> None:
    expected = scores(prefilled(kind))
    chain = [(1, 7), (7, 6), (5, 7), (3, 5)]  # 7 and 5 receive something after they were read
    assert np.array_equal(scores(prefilled(kind), [7, 6, 5], chain), expected)


@each_runtime
def test_copies_come_before_the_step_computes(kind: str) -> None:
    expected = scores(prefilled(kind))
    runtime = prefilled(kind)
    overwrite(runtime, [1], copies=[(1, 7)])
    assert np.array_equal(scores(runtime, [5, 7, 3]), expected)


@each_runtime
def test_the_copy_of_a_part_goes_on_with_other_tokens(kind: str) -> None:
    """What stands behind the shared tokens of a copied block is overwritten, not seen."""
    other = [*PROMPT[:40], *PROMPT[:20]]
    cold, warm = loaded(kind), prefilled(kind)
    logits = np.empty((2, 1, VOCAB), np.float32)
    cold.execute(step_of(Chunk(other, 0, [0, 1])), logits[0])
    warm.execute(copying(step_of(Chunk(other[40:], 40, [5, 7])), [(1, 7)]), logits[1])
    if kind == "reference":  # NumPy adds in another order for chunks of other lengths
        assert np.allclose(logits[0], logits[1], rtol=1e-4, atol=1e-4)
    else:
        assert np.array_equal(logits[0], logits[1])


@each_runtime
def test_what_went_to_the_file_comes_back(kind: str, file: BinaryIO) -> None:
    expected = scores(prefilled(kind))
    runtime = prefilled(kind, file)
    out = [(5, BLOCKS + 2), (1, BLOCKS), (3, BLOCKS + 3)]
    overwrite(runtime, [5, 1, 3], copies=out)
    assert not np.array_equal(scores(runtime), expected)
    assert np.array_equal(scores(runtime, [0, 1, 2], [(BLOCKS + 2, 0), (BLOCKS, 1), (BLOCKS + 3, 2)]), expected)
    overwrite(runtime, [0], copies=[(7, BLOCKS)])
    assert np.array_equal(scores(runtime, [4, 1, 2], [(BLOCKS + 2, 4)]), expected), "one slot leaves the others alone"


def test_a_model_of_more_layers_than_one_call_of_the_system_moves(file: BinaryIO) -> None:
    shape = {"layers": 1100, "width": 16, "ffn_width": 32, "heads": 1, "kv_heads": 1, "head_dim": 16}
    runtime = prefilled("cpu-int8", file, **shape)
    expected = scores(runtime)
    overwrite(runtime, TABLE, copies=[(5, 8), (1, 9), (3, 10)])
    assert np.array_equal(scores(runtime, [0, 2, 4], [(8, 0), (9, 2), (10, 4)]), expected)


@pytest.mark.parametrize("kind", ["fake", "cpu-f16", "cpu-int8"])
@examples(30)
@given(data=st.data())
def test_any_list_of_copies_moves_what_it_says(kind: str, data: st.DataObject) -> None:
    """Each block begins as a prompt of its own; where each one went is followed on paper."""
    ends = st.integers(0, BLOCKS + SLOTS - 1)
    pairs = st.tuples(ends, ends).filter(lambda p: p[0] != p[1] and min(p) < BLOCKS)
    copies = data.draw(st.lists(pairs, max_size=12))
    with tempfile.TemporaryFile(buffering=0) as file:
        runtime = loaded(kind, file)
        for block in range(BLOCKS):
            runtime.execute(step_of(Chunk([block + 1] * 31, 0, [block], draw=[])))
        before = [last_of(runtime, block) for block in range(BLOCKS)]
        holds: dict[int, int] = {block: block for block in range(BLOCKS)}
        for source, target in copies:
            if source in holds:
                holds[target] = holds[source]
            else:
                holds.pop(target, None)  # what an unwritten slot holds is nobody's business
        runtime.execute(copying(step_of(Chunk([50], 31, [0], draw=[])), copies))
        for block in range(BLOCKS):
            if block in holds:
                assert np.array_equal(last_of(runtime, block), before[holds[block]])


def last_of(runtime: Runtime, block: int) -> npt.NDArray:
    logits = np.empty((1, VOCAB), np.float32)
    runtime.execute(step_of(Chunk([50], 31, [block])), logits)
    return logits


BAD = {
    "a target out of range": [(0, BLOCKS + SLOTS)],
    "a negative source": [(-1, 0)],
    "onto itself": [(2, 2)],
    "from slot to slot": [(BLOCKS, BLOCKS + 1)],
    "a good one before a bad one": [(5, 1), (0, 99)],
}


@each_runtime
@pytest.mark.parametrize("copies", BAD.values(), ids=BAD)
def test_bad_copies_are_refused_and_none_is_done(kind: str, copies: list[tuple[int, int]], file: BinaryIO) -> None:
    expected = scores(prefilled(kind))
    runtime = prefilled(kind, file)
    with pytest.raises(ValueError, match="cop"):
        scores(runtime, copies=copies)
    assert np.array_equal(scores(runtime), expected)


@each_runtime
def test_copies_must_be_pairs(kind: str) -> None:
    step = step_of(Chunk([1], 0, [0]))
    step.copies = np.zeros((2, 3), np.int32)
    with pytest.raises(ValueError, match="copies must"):
        prefilled(kind).execute(step)


@each_runtime
def test_without_an_offload_file_there_are_no_slots(kind: str) -> None:
    with pytest.raises(ValueError, match="cop"):
        scores(prefilled(kind), copies=[(1, BLOCKS)])


def test_a_file_that_cannot_be_read_or_written_is_a_clear_error(file: BinaryIO) -> None:
    runtime = prefilled("cpu-f16", file)
    file.truncate(100)
    with pytest.raises(RuntimeError, match="the KV offload file cannot be read: Input/output error"):
        scores(runtime, copies=[(BLOCKS + 1, 0)])
    with tempfile.NamedTemporaryFile() as named, open(named.name, "rb") as read_only:
        runtime = prefilled("cpu-f16")
        runtime.offload_to(read_only, SLOTS)
        with pytest.raises(RuntimeError, match="the KV offload file cannot be written: Bad file descriptor"):
            scores(runtime, copies=[(1, BLOCKS)])


def test_an_offload_file_is_taken_once_and_after_the_cache_is_there(file: BinaryIO) -> None:
    runtime = CpuRuntime(threads=1)
    runtime.load(tiny_checkpoint())
    with pytest.raises(ValueError, match="after the KV cache is allocated, and once"):
        runtime.offload_to(file, 1)
    runtime.allocate(BLOCKS)
    with pytest.raises(ValueError, match="of 0 slots"):
        runtime.offload_to(file, 0)
    runtime.offload_to(file, 1)
    with pytest.raises(ValueError, match="once"):
        runtime.offload_to(file, 1)
