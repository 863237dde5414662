"""From a step's scores to its output, by the reference definition of sampling: for the runtimes written in NumPy."""

import time
from collections.abc import Callable

import numpy as np

from lightwell.runtimes.base import (
    Floats,
    Int32s,
    SamplingRows,
    StepOutput,
    allowed_in_row,
    edits_of_row,
    params_of_row,
)
from lightwell.sampling.reference import best, choose, constrained, log_probabilities
from lightwell.units import Seconds


def draw(scores: Floats, rows: SamplingRows, started: Seconds) -> StepOutput:
    """Choose a token for each row of ``scores`` (L, vocab); ``started`` is when the step began, on perf_counter."""

    def drawn(row: int) -> int:
        changed = constrained(scores[row], edits_of_row(rows, row), allowed_in_row(rows, row, scores.shape[1]))
        return choose(changed, params_of_row(rows, row), int(rows.positions[row]))

    return report(tokens_of(rows, drawn), scores, rows, started)


def tokens_of(rows: SamplingRows, drawn: Callable[[int], int]) -> Int32s:
    """Each row's token (L,): the one that is given, else what ``drawn`` says of it, once the masks are complete."""
    if rows.masks is not None and len(rows.positions) > 0:
        rows.masks.wait()
    given = rows.given if rows.given is not None else np.full(len(rows.positions), -1)
    return np.array([drawn(row) if token < 0 else token for row, token in enumerate(given)], np.int32)


def report(tokens: Int32s, scores: Floats, rows: SamplingRows, started: Seconds) -> StepOutput:
    """The output for tokens already chosen, with log-probabilities where any row asks for them."""
    output = StepOutput(tokens, duration=time.perf_counter() - started)
    count = int(rows.logprobs.max(initial=-1))
    if count >= 0:
        logprobs = np.array([log_probabilities(row) for row in scores], np.float32)
        top_ids = np.array([best(row, count) for row in scores])
        output.chosen = np.take_along_axis(logprobs, tokens[:, None].astype(np.int64), axis=1)[:, 0]
        output.top_ids, output.top = top_ids.astype(np.int32), np.take_along_axis(logprobs, top_ids, axis=1)
    return output
