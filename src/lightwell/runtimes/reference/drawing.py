"""From a step's scores to its output, by the reference definition of sampling: for the runtimes written in NumPy."""

import time

import numpy as np

from lightwell.runtimes.base import Floats, Int32s, SamplingRows, StepOutput, params_of_row
from lightwell.sampling.reference import best, choose, log_probabilities
from lightwell.units import Seconds


def draw(scores: Floats, rows: SamplingRows, started: Seconds) -> StepOutput:
    """Choose a token for each row of ``scores`` (L, vocab); ``started`` is when the step began, on perf_counter."""
    tokens = [choose(row, params_of_row(rows, i), int(rows.positions[i])) for i, row in enumerate(scores)]
    return report(np.array(tokens, np.int32), scores, rows, started)


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
