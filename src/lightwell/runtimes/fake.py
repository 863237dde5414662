"""FakeRuntime: a runtime without a model, for tests of everything above it.

Its next token is a hash of all tokens and positions that a sequence sees, read back through the block table from its
own paged store. So a wrong, swapped, stale or overwritten block, a missing token or a wrong position changes the text.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.runtimes.base import (
    BLOCK_TOKENS,
    Floats,
    MemoryReport,
    StepInput,
    StepOutput,
    allowed_in_row,
    edits_of_row,
    params_of_row,
)
from lightwell.runtimes.reference.drawing import report, tokens_of
from lightwell.runtimes.slots import copies_of, slots
from lightwell.sampling.edits import Edits, ScoreEditor, needs_edits
from lightwell.sampling.noise import mix64
from lightwell.sampling.params import SamplingParams
from lightwell.sampling.reference import Bools, choose, constrained

_MASK = (1 << 64) - 1
_STRIDE = 0xD1B54A32D192ED03  # odd, so that position * _STRIDE differs for every position
_BYTES_PER_SLOT = 8
_NEARLY_GREEDY = 0.005  # scores 0.2 apart are then 40 apart, and a draw's noise spans 26: only equals are drawn among

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class FakeModel:
    """What the fake speaks: ids below ``vocab``, and ``stop_token`` with this chance in place of any other. Its hidden
    states have ``width`` numbers.

    The token that its hash says has the score 1, all others 0.
    """

    vocab: int = 1000
    stop_token: int = 0
    stop_chance: float = 0.0
    width: int = 8

    def token(self, drawn: int) -> int:
        """Where no score is changed; ``drawn`` is the hash of what the token depends on."""
        return self.stop_token if drawn / 2**64 < self.stop_chance else drawn % self.vocab

    def scores(self, tokens: npt.ArrayLike) -> Floats:
        """Where these are the tokens (L,): (L, vocab)."""
        return np.asarray(np.arange(self.vocab) == np.asarray(tokens)[:, None], np.float32)

    def hidden(self, seen: Sequence[int]) -> Floats:
        """Where this is what is seen (H,): (H, width) of numbers in [-1, 1)."""
        places = np.arange(self.width, dtype=np.uint64) * np.uint64(_STRIDE)
        return np.asarray(mix64(np.array(seen, np.uint64)[:, None] + places) / 2.0**63 - 1, np.float32)

    def draw(self, drawn: int, edits: Edits | None = None, allowed: Bools | None = None) -> int:
        """The token with the highest score once they are edited and masked, any one of them where there are several."""
        token = self.token(drawn)
        if edits is None and allowed is None:
            return token
        scores = constrained(self.scores([token])[0], edits, allowed)
        return choose(scores, SamplingParams(temperature=_NEARLY_GREEDY, seed=drawn), 0)


def slow_reference(
    tokens: Sequence[int],
    count: int,
    params: SamplingParams | None = None,
    model: FakeModel | None = None,
    min_tokens: int = 0,
    stop_tokens: Collection[int] = (),
    allowed: Callable[[list[int]], Bools | None] = lambda answer: None,
) -> list[int]:
    """The ``count`` tokens that follow ``tokens`` when the request runs alone, from the definition, without blocks.

    ``allowed`` says which tokens (vocab,) may follow this much of the answer, None for all.
    """
    params, model = params or SamplingParams(temperature=0), model or FakeModel()
    edited = needs_edits(params, min_tokens, stop_tokens)
    known = list(tokens)
    seen = 0
    for position in range(len(tokens) + count - 1):
        seen = _see(seen, _identity(seen, known[position]), position)
        if position == len(known) - 1:
            answer = known[len(tokens) :]
            edits = ScoreEditor(tokens, params, min_tokens, stop_tokens, answer).columns() if edited else None
            known.append(model.draw(_drawn(seen, params, position + 1), edits, allowed(answer)))
    return known[len(tokens) :]


class FakeRuntime:
    """Each slot of the store holds its token's identity: the hash of the token and of all it sees, place by place.

    As in a transformer, what is stored for a token depends on the whole context that was there when it was computed,
    so a block that holds the right tokens in the wrong context is found out as well.
    """

    def __init__(self, model: FakeModel | None = None) -> None:
        self._model = model or FakeModel()

    def load(self, checkpoint: Checkpoint) -> MemoryReport:
        """Speak the checkpoint's vocabulary; its weights are not read."""
        spec, model = checkpoint.spec, self._model
        self._model = FakeModel(spec.vocab, model.stop_token, model.stop_chance, spec.width)
        return MemoryReport(0, 0, kv_bytes_per_block=BLOCK_TOKENS * _BYTES_PER_SLOT, details={"arithmetic": "fake"})

    def allocate(self, blocks: int) -> None:
        self._blocks, self._offload_slots = blocks, 0
        self._store: Hashes = np.zeros(blocks * BLOCK_TOKENS, np.uint64)

    def offload_to(self, file: BinaryIO, slots: int) -> None:
        """The slots are in memory, and the file stays empty."""
        self._offload_slots = slots
        self._store = np.concatenate([self._store, np.zeros(slots * BLOCK_TOKENS, np.uint64)])

    def execute(self, step: StepInput, logits: Floats | None = None) -> StepOutput:
        """ValueError for a step that no runtime may be given: a bad block table, token or run of positions, or a slot
        that two tokens are written to."""
        started = time.perf_counter()
        copies = copies_of(step, self._blocks, self._offload_slots)
        if len(step.tokens):
            self._check(step)
        self._copy(copies)
        if len(step.tokens) == 0:
            output = report(np.zeros(0, np.int32), self._model.scores([]), step.sampling, started)
            output.hidden = None if step.hidden_rows is None else self._model.hidden([])
            return output
        seen = [seen for sequence in range(len(step.starts) - 1) for seen in self._compute(step, sequence)]
        rows, model = step.sampling, self._model
        drawn = [
            _drawn(seen[row], params_of_row(rows, i), int(rows.positions[i])) for i, row in enumerate(step.logit_rows)
        ]
        scores = model.scores([model.token(each) for each in drawn])
        if logits is not None:
            logits[:] = scores
        tokens = tokens_of(
            rows, lambda row: model.draw(drawn[row], edits_of_row(rows, row), allowed_in_row(rows, row, model.vocab))
        )
        output = report(tokens, scores, rows, started)
        if step.hidden_rows is not None:
            output.hidden = model.hidden([seen[row] for row in step.hidden_rows])
        return output

    def _copy(self, copies: list[list[int]]) -> None:
        by_block = self._store.reshape(-1, BLOCK_TOKENS)
        for source, target in copies:
            by_block[target] = by_block[source]

    def _compute(self, step: StepInput, sequence: int) -> list[int]:
        """Store the identities of a sequence's tokens; returns what each of its rows sees, itself included."""
        begin, end = int(step.starts[sequence]), int(step.starts[sequence + 1])
        first = int(step.positions[begin])
        where = slots(step.block_tables[sequence], 0, first + end - begin, self._blocks)
        seen = _see_all(self._store[where[:first]])
        hashes = []
        for position, token in enumerate(step.tokens[begin:end].tolist(), first):
            identity = _identity(seen, token)
            self._store[where[position]] = identity
            seen = _see(seen, identity, position)
            hashes.append(seen)
        return hashes

    def _check(self, step: StepInput) -> None:
        if ((step.tokens < 0) | (step.tokens >= self._model.vocab)).any():
            raise ValueError(f"a step with tokens outside 0..{self._model.vocab - 1}")
        written = np.concatenate([self._written(step, i) for i in range(len(step.starts) - 1)])
        if len(np.unique(written)) != len(written):
            raise ValueError("a step in which two tokens are written to the same slot")

    def _written(self, step: StepInput, sequence: int) -> npt.NDArray[np.int64]:
        positions = step.positions[step.starts[sequence] : step.starts[sequence + 1]]
        if len(positions) == 0 or (np.diff(positions) != 1).any():
            raise ValueError(f"sequence {sequence} of a step has positions {positions.tolist()}: not a run of them")
        return slots(step.block_tables[sequence], int(positions[0]), int(positions[-1]) + 1, self._blocks)


def _drawn(seen: int, params: SamplingParams, position: int) -> int:
    """The hash that decides the token at ``position`` after what is seen; with a temperature, the seed matters too."""
    noise = mix64(params.seed + _STRIDE * position) if params.temperature > 0 else 0
    return mix64(seen ^ noise)


def _identity(seen: int, token: int) -> int:
    """What is stored for a token after a context; hardly ever 0, which is what an unwritten slot holds."""
    return mix64((seen ^ token) + _STRIDE)


def _see(seen: int, identity: int, position: int) -> int:
    """Add the identity found at a position to what is seen: a sum, so that it can be taken over an array as well."""
    return (seen + mix64(identity + position * _STRIDE)) & _MASK


def _see_all(identities: Hashes) -> int:
    """_see over the positions 0, 1, 2, ... of the array."""
    places = np.arange(len(identities), dtype=np.uint64) * np.uint64(_STRIDE)
    return int(mix64(identities + places).sum(dtype=np.uint64))
