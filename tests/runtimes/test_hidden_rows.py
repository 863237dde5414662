"""Hidden rows: what the final norm makes of a token, given out by every runtime, with the same bits in any batch."""

from dataclasses import replace

import numpy as np
import pytest

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.runtimes.base import Floats, Runtime, StepInput
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.fake import FakeRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from tests.steps import Chunk, step_of
from tests.tiny import KINDS, tiny_checkpoint

TOKENS = [(7 * n + n * n) % 100 for n in range(70)]
TABLE, OTHER_TABLE = [3, 1, 5], [0, 2]


def loaded(runtime: Runtime, checkpoint: Checkpoint) -> Runtime:
    runtime.load(checkpoint)
    runtime.allocate(8)
    return runtime


def giving(step: StepInput, rows: list[int]) -> StepInput:
    return replace(step, hidden_rows=np.array(rows, np.int32))


def hidden(runtime: Runtime, step: StepInput, rows: list[int], logits: Floats | None = None) -> Floats:
    output = runtime.execute(giving(step, rows), logits)
    assert output.hidden is not None
    return output.hidden


def whole(runtime: Runtime) -> Floats:
    return hidden(runtime, step_of(Chunk(TOKENS, 0, TABLE, draw=[])), list(range(len(TOKENS))))


@pytest.mark.parametrize("family", KINDS)
def test_the_head_makes_scores_of_them(family) -> None:
    checkpoint = tiny_checkpoint(family=family)
    runtime = loaded(ReferenceRuntime(), checkpoint)
    logits = np.empty((2, checkpoint.spec.vocab), np.float32)
    rows = hidden(runtime, step_of(Chunk(TOKENS, 0, TABLE, draw=[4, 69])), [4, 20, 69], logits)
    scores = rows[[0, 2]] @ dequantize(checkpoint.tensors["embed.weight"]).T
    cap = checkpoint.spec.final_soft_cap
    assert np.allclose(cap * np.tanh(scores / cap) if cap else scores, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", KINDS)
def test_the_native_ones_are_those_of_the_reference(family) -> None:
    checkpoint = tiny_checkpoint(family=family)
    expected = whole(loaded(ReferenceRuntime(), checkpoint))
    actual = whole(loaded(CpuRuntime(threads=2, activations="float32"), checkpoint))
    assert np.abs(actual - expected).max() < 5e-3 * np.abs(expected).max()  # keys and values are halves in the cache


@pytest.mark.parametrize("kind", [CpuRuntime, FakeRuntime])
def test_bits_depend_on_the_sequence_alone(kind) -> None:
    checkpoint = tiny_checkpoint()
    alone = whole(loaded(kind(), checkpoint))
    runtime = loaded(kind(), checkpoint)
    first = step_of(Chunk(list(range(40)), 0, OTHER_TABLE), Chunk(TOKENS[:33], 0, TABLE, draw=[]))
    second = step_of(Chunk(TOKENS[33:], 33, TABLE), Chunk([5], 40, OTHER_TABLE))
    parts = [hidden(runtime, first, list(range(40, 73))), hidden(runtime, second, list(range(37)))]
    assert np.concatenate(parts).tobytes() == alone.tobytes()


@pytest.mark.parametrize("kind", [CpuRuntime, ReferenceRuntime, FakeRuntime])
def test_none_are_given_out_unasked(kind) -> None:
    runtime = loaded(kind(), tiny_checkpoint())
    assert runtime.execute(step_of(Chunk([1, 2], 0, [0]))).hidden is None


@pytest.mark.parametrize(
    ("rows", "complaint"), [([0, 2], r"hidden_rows\[1\] is 2"), ([1, 0], r"hidden_rows\[1\] is 0"), ([-1], "is -1")]
)
def test_rows_that_are_not_there_are_refused(rows: list[int], complaint: str) -> None:
    runtime = loaded(CpuRuntime(), tiny_checkpoint())
    with pytest.raises(ValueError, match=complaint):
        runtime.execute(giving(step_of(Chunk([1, 2], 0, [0])), rows))
