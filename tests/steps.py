"""Steps for a runtime, written by hand: what the engine would build, in the few words that a test needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightwell.runtimes.base import BLOCK_TOKENS, Runtime, StepInput, sampling_rows
from lightwell.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0)


@dataclass
class Chunk:
    """Some following tokens of one sequence. ``draw`` says after which of its rows a token is drawn (-1: the last)."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]
    draw: Sequence[int] = (-1,)
    params: SamplingParams = field(default=GREEDY)


def step_of(*chunks: Chunk) -> StepInput:
    starts = np.cumsum([0] + [len(chunk.tokens) for chunk in chunks])
    tables = np.full((len(chunks), max(len(chunk.table) for chunk in chunks)), -1, np.int32)
    for row, chunk in zip(tables, chunks, strict=True):
        row[: len(chunk.table)] = chunk.table
    positions = np.concatenate([chunk.start + np.arange(len(chunk.tokens)) for chunk in chunks])
    drawn = [
        (start + row % len(chunk.tokens), chunk.params)
        for start, chunk in zip(starts[:-1], chunks, strict=True)
        for row in chunk.draw
    ]
    rows = np.array([row for row, _ in drawn], np.int32)
    return StepInput(
        tokens=np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int32),
        positions=positions.astype(np.int32),
        starts=starts.astype(np.int32),
        block_tables=tables,
        logit_rows=rows,
        sampling=sampling_rows([params for _, params in drawn], [int(positions[row]) + 1 for row in rows]),
    )


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def generate(
    runtime: Runtime,
    prompt: Sequence[int],
    count: int,
    *,
    params: SamplingParams = GREEDY,
    chunk_tokens: int = 1 << 30,
    table: Sequence[int] | None = None,
) -> list[int]:
    """The tokens that a runtime writes after a prompt, alone, fed in chunks. The runtime has blocks allocated."""
    table = table or list(range(blocks_for(len(prompt) + count)))
    known, computed = list(prompt), 0
    while len(known) < len(prompt) + count:
        chunk = known[computed : computed + chunk_tokens]
        output = runtime.execute(step_of(Chunk(chunk, computed, table, params=params)))
        computed += len(chunk)
        if computed == len(known):
            known.append(int(output.tokens[0]))
    return known[len(prompt) :]
