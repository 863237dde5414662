"""BatchBuilder: turns a step's plan into the runtime's flat arrays.

What stays the same from step to step (block tables, sampling parameters) lies in one row for each running sequence,
written when it changes; a step only gathers the rows of its chunks.
"""

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from lightwell.engine.edits import StepEdits
from lightwell.engine.masks import StepMasks
from lightwell.engine.scheduler import Chunk, SchedulerLimits
from lightwell.engine.sequence import Sequence
from lightwell.events import TokenLogprobs
from lightwell.kv.block_pool import BlockTable, Copy
from lightwell.runtimes.base import SamplingRows, StepInput, StepOutput


class BatchBuilder:
    def __init__(self, limits: SchedulerLimits, masks: StepMasks | None = None) -> None:
        """Without ``masks`` the grammars of requests are left out: for guesses, which need not be any good."""
        rows = limits.max_sequences
        width = min(-(-limits.context_tokens // limits.block_tokens), limits.blocks)
        self._owners: list[BlockTable | None] = [None] * rows  # whose blocks the row shows; one table is one stay
        self._filled = [0] * rows
        self._tables = np.full((rows, width), -1, np.int32)
        self._temperature = np.zeros(rows, np.float32)
        self._top_k = np.zeros(rows, np.int32)
        self._top_p = np.zeros(rows, np.float32)
        self._min_p = np.zeros(rows, np.float32)
        self._seeds = np.zeros(rows, np.uint64)
        self._logprobs = np.zeros(rows, np.int32)
        self._edits = StepEdits(rows)
        self._masks = masks

    def build(self, chunks: list[Chunk], copies: Items[Copy] = ()) -> StepInput:
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        starts, logit_rows, logit_owners, drawn_positions = [0], [], [], []
        hidden_rows: list[int] = []
        width = 0
        for chunk in chunks:
            sequence, start, end = chunk.sequence, chunk.start, chunk.start + chunk.tokens
            row, first = sequence.row, len(tokens) - start  # the row of position 0, if it were here
            width = max(width, self._refresh(sequence))
            tokens += sequence.known[start:end]
            tokens += chunk.proposed
            rows.append(row)
            starts.append(len(tokens))
            end += len(chunk.proposed)
            positions += range(start, end)
            after = _positions_with_results(chunk)
            logit_rows += [first + position for position in after]
            logit_owners += [row] * len(after)
            drawn_positions += [position + 1 for position in after]
            hidden_rows += [first + sequence.pooled + i for i in range(chunk.pooled)]
        sampling = self._sampling(np.array(logit_owners, np.intp), np.array(drawn_positions, np.int32))
        sampling.edits = self._edits.of(chunks)
        sampling.masks = None if self._masks is None else self._masks.of(chunks)
        if any(chunk.scored for chunk in chunks):
            _give_scored(sampling, chunks)
        return StepInput(
            tokens=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            starts=np.array(starts, np.int32),
            block_tables=self._tables[:, :width].take(rows, axis=0),
            logit_rows=np.array(logit_rows, np.int32),
            sampling=sampling,
            copies=np.array(copies, np.int32) if copies else None,
            hidden_rows=np.array(hidden_rows, np.int32) if hidden_rows else None,
        )

    def _refresh(self, sequence: Sequence) -> int:
        """Bring the sequence's row up to date; returns the number of its blocks."""
        row, table = sequence.row, sequence.table
        if self._owners[row] is not table:
            self._adopt(sequence)
        blocks, filled = len(table.blocks), self._filled[row]
        if filled < blocks:
            self._tables[row, filled:blocks] = table.blocks[filled:]
            self._filled[row] = blocks
        return blocks

    def _adopt(self, sequence: Sequence) -> None:
        row, params = sequence.row, sequence.request.sampling
        self._owners[row] = sequence.table
        self._filled[row] = 0
        self._tables[row] = -1
        self._temperature[row] = params.temperature
        self._top_k[row] = params.top_k
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = params.seed
        self._edits.adopt(sequence)
        self._logprobs[row] = -1 if params.logprobs is None else params.logprobs

    def _sampling(self, rows: npt.NDArray[np.intp], positions: npt.NDArray[np.int32]) -> SamplingRows:
        return SamplingRows(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seeds=self._seeds[rows],
            positions=positions,
            logprobs=self._logprobs[rows],
        )


def _positions_with_results(chunk: Chunk) -> list[int]:
    """The positions after which a token is scored, then those after which one is drawn."""
    scored, end = chunk.sequence.scored, chunk.start + chunk.tokens + len(chunk.proposed)
    return [*range(scored, scored + chunk.scored), *range(end - chunk.draws, end)]


def _give_scored(sampling: SamplingRows, chunks: list[Chunk]) -> None:
    """Rows whose next token is the prompt's own report it, with as many candidates as the request asks for there."""
    given = np.full(len(sampling.positions), -1, np.int32)
    row = 0
    for chunk in chunks:
        if chunk.scored:
            first, request, scored = chunk.sequence.scored + 1, chunk.sequence.request, slice(row, row + chunk.scored)
            given[scored] = request.tokens[first : first + chunk.scored]
            sampling.logprobs[scored] = request.prompt_logprobs or 0
        row += chunk.results
    sampling.given = given


def read_logprobs(chunks: list[Chunk], output: StepOutput) -> list[TokenLogprobs | None] | None:
    """What each result asked for, or None where the step reports nothing."""
    if output.chosen is None or output.top_ids is None or output.top is None:
        return None
    chosen, top_ids, top = output.chosen.tolist(), output.top_ids.tolist(), output.top.tolist()
    asked: list[int | None] = []
    for chunk in chunks:
        request = chunk.sequence.request
        asked += [request.prompt_logprobs] * chunk.scored + [request.sampling.logprobs] * chunk.draws
    return [
        None if count is None else TokenLogprobs(chosen[i], top_ids[i][:count], top[i][:count])
        for i, count in enumerate(asked)
    ]
