"""The one protocol behind which every runtime computes a step: load a model, allocate KV blocks, execute steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.runtimes.block import BLOCK_TOKENS as BLOCK_TOKENS
from lightwell.runtimes.block import KVCacheDtype as KVCacheDtype
from lightwell.sampling.edits import NO_EDITS, Edits
from lightwell.sampling.params import SamplingParams
from lightwell.units import Bytes, Seconds

Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class ScoreEdits:
    """Sparse changes of scores before the draw: row i of the logit rows owns entries starts[i]:starts[i + 1].

    The score of ``tokens[e]`` is divided by ``factors[e]`` > 0 where it is positive and multiplied where it is not;
    then ``addends[e]`` is added. A row names a token at most once. An addend of -inf forbids the token.
    sampling/reference.py defines the arithmetic.
    """

    starts: Int32s
    tokens: Int32s
    factors: Floats
    addends: Floats


@dataclass(slots=True)
class Masks:
    """Which tokens a grammar allows: bit t % 32 of ``bits[m, t // 32]`` is set where token t may be drawn.

    ``rows`` (L,) is the mask of each logit row, -1 for none. ``bits`` (M, ceil(vocab / 32)) is being written while the
    step computes; it is complete once ``wait`` has returned, which a runtime calls once, before the step's first draw
    and after all that it can compute without. What ``wait`` raises ends the step.
    """

    rows: Int32s
    bits: npt.NDArray[np.uint32]
    wait: Callable[[], None]


@dataclass(slots=True)
class SamplingRows:
    """Sampling parameters as columns, one entry for each logit row (see sampling/params.py for their meaning).

    ``positions`` is the place in the sequence of the token being drawn: with the seed it fixes the random numbers.
    ``logprobs`` is -1 for none, else how many of the best candidates are reported. They are the model's own, before
    edits and masks. ``given`` is -1, or the token that stands there already: it is reported instead of a drawn one.
    """

    temperature: Floats
    top_k: Int32s
    top_p: Floats
    min_p: Floats
    seeds: npt.NDArray[np.uint64]
    positions: Int32s
    logprobs: Int32s
    given: Int32s | None = None  # None: every row draws
    edits: ScoreEdits | None = None
    masks: Masks | None = None


def sampling_rows(params: Sequence[SamplingParams], positions: Sequence[int]) -> SamplingRows:
    """The columns of these rows: ``params[i]`` draws the token at ``positions[i]`` of its sequence."""
    return SamplingRows(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seeds=np.array([p.seed for p in params], np.uint64),
        positions=np.array(positions, np.int32),
        logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
    )


def params_of_row(rows: SamplingRows, row: int) -> SamplingParams:
    """One row of the columns, as the request had it (with its fractions rounded to float32)."""
    logprobs = int(rows.logprobs[row])
    return SamplingParams(
        temperature=float(rows.temperature[row]),
        top_k=int(rows.top_k[row]),
        top_p=float(rows.top_p[row]),
        min_p=float(rows.min_p[row]),
        seed=int(rows.seeds[row]),
        logprobs=None if logprobs < 0 else logprobs,
    )


def merged_edits(rows: Sequence[Edits | None]) -> ScoreEdits:
    """The edits of all logit rows of a step, in their order; None for a row without any. Copies them."""
    each = [NO_EDITS if edits is None else edits for edits in rows]
    tokens, factors, addends = (np.concatenate(columns) for columns in zip(NO_EDITS, *each, strict=True))
    starts = np.cumsum([0] + [len(edits.tokens) for edits in each], dtype=np.int32)
    return ScoreEdits(starts, tokens, factors, addends)


def edits_of_row(rows: SamplingRows, row: int) -> Edits | None:
    """The edits of one logit row; None where it has none."""
    if rows.edits is None or rows.edits.starts[row] == rows.edits.starts[row + 1]:
        return None
    own = slice(rows.edits.starts[row], rows.edits.starts[row + 1])
    return Edits(rows.edits.tokens[own], rows.edits.factors[own], rows.edits.addends[own])


def allowed_in_row(rows: SamplingRows, row: int, vocab: int) -> npt.NDArray[np.bool_] | None:
    """Which tokens (vocab,) the mask of one logit row allows; None where it has no mask."""
    if rows.masks is None or rows.masks.rows[row] < 0:
        return None
    words = rows.masks.bits[rows.masks.rows[row]].astype("<u4")
    return np.unpackbits(words.view(np.uint8), count=vocab, bitorder="little").astype(bool)


@dataclass(slots=True)
class StepInput:
    """One step, as flat arrays. T tokens of S sequences; a sequence's tokens follow each other and so do its positions.

    ``tokens`` and ``positions`` are (T,). ``starts`` (S + 1,): sequence s owns rows starts[s]:starts[s + 1].
    ``block_tables`` (S, B): the KV block that holds positions [32 b, 32 b + 32) of sequence s, -1 past its end.
    ``logit_rows`` (L,): the rows, ascending, after which a token is drawn; a row from which several are drawn is there
    as often. ``sampling`` has L entries.
    ``copies`` (C, 2): KV blocks to copy, source and target, in this order and before anything is computed. Ids from
    the number of blocks on are slots of the offload file.
    ``hidden_rows`` (H,): the rows, ascending, whose final normed hidden states are given out.
    """

    tokens: Int32s
    positions: Int32s
    starts: Int32s
    block_tables: Int32s
    logit_rows: Int32s
    sampling: SamplingRows
    copies: Int32s | None = None
    hidden_rows: Int32s | None = None


@dataclass(slots=True)
class StepOutput:
    """``tokens`` (L,) are the drawn ids. The three logprob arrays are None where no row asked for any; else
    ``chosen`` (L,), ``top_ids`` and ``top`` (L, K) with K the largest number asked for; natural logarithms. ``hidden``
    (H, width) is what the output head would read of the hidden rows; None where the step names none."""

    tokens: Int32s
    duration: Seconds
    chosen: Floats | None = None
    top_ids: Int32s | None = None
    top: Floats | None = None
    hidden: Floats | None = None


@dataclass(frozen=True)
class MemoryReport:
    """What a loaded model takes, for the plan that the server prints at its start."""

    weight_bytes: Bytes
    workspace_bytes: Bytes
    kv_bytes_per_block: Bytes
    details: dict[str, str] = field(default_factory=dict)  # such as threads, instruction set


class Runtime(Protocol):
    def load(self, checkpoint: Checkpoint) -> MemoryReport:
        """Read the weights into the runtime's own form. Raises CheckpointError where it cannot run this model."""
        ...

    def allocate(self, blocks: int) -> None:
        """Make room for this many KV blocks of BLOCK_TOKENS tokens, all zero."""
        ...

    def offload_to(self, file: BinaryIO, slots: int) -> None:
        """After ``allocate``: keep ``slots`` more blocks in this file, which must have their size and stays open.

        They are numbered on from the blocks; copies lead to them and back, and block tables never name them.
        """
        ...

    def execute(self, step: StepInput, logits: Floats | None = None) -> StepOutput:
        """Compute one whole step. ``logits`` (L, vocab), where given, receives the raw scores of the logit rows."""
        ...
