"""How well a model predicts a text: the text in chunks, and the scores of each chunk's second half.

The definition is llama.cpp's (tools/perplexity), so that figures can be compared: chunks of the context's length that
do not overlap, BOS over each one's first token where the model wants it, and only tokens that follow at least half a
context are counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.errors import StartupError
from lightwell.host.memory import blocks_for
from lightwell.runtimes.base import Floats, Int32s, Runtime, StepInput, sampling_rows
from lightwell.sampling.params import SamplingParams
from lightwell.text import Tokenizer
from lightwell.units import Tokens

STEP_TOKENS: Tokens = 512  # bounds the memory of a step's scores, which a long context would multiply


@dataclass
class Perplexity:
    """The negative log-likelihoods of tokens, in nats, summed with their squares."""

    positions: int = 0
    loss: float = 0.0
    squares: float = 0.0

    def add(self, loss: float) -> None:
        self.positions += 1
        self.loss += loss
        self.squares += loss * loss

    @property
    def value(self) -> float:
        return math.exp(self.loss / self.positions)

    @property
    def standard_error(self) -> float:
        """Of the perplexity, to first order, taking the tokens' losses as independent."""
        mean = self.loss / self.positions
        variance = max(self.squares / self.positions - mean * mean, 0.0)
        return self.value * math.sqrt(variance / max(self.positions - 1, 1))


def chunks(tokenizer: Tokenizer, text: str, context: Tokens, count: int | None) -> list[list[int]]:
    """The first ``count`` runs of ``context`` tokens of the text, or all of them.

    Raises StartupError where the text has fewer, or not even one.
    """
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    tokens = bos + tokenizer.encode(text, special=False)
    found, wanted = len(tokens) // context, count or 1
    if found < wanted:
        raise StartupError(
            f"The text has {len(tokens)} tokens, but {wanted * context} are needed ({wanted} x {context}): "
            "give a longer text, or a smaller --chunks or --context."
        )
    starts = range(0, (count or found) * context, context)
    return [bos + tokens[start + len(bos) : start + context] for start in starts]


def load(runtime: Runtime, checkpoint: Checkpoint, context: Tokens) -> None:
    """Load the model with room for one chunk."""
    runtime.load(checkpoint)
    runtime.allocate(blocks_for(context))


def score(runtime: Runtime, tokens: list[int], vocab: int) -> Iterator[tuple[Floats, Int32s]]:
    """Compute a chunk in steps; yield the raw scores (positions, vocab) of the positions that count, and the tokens
    that do follow them (positions,). The last position does not count, as nothing follows it."""
    ids = np.asarray(tokens, np.int32)
    first, last = len(tokens) // 2, len(tokens) - 1
    for start in range(0, last, STEP_TOKENS):
        end = min(start + STEP_TOKENS, last)
        counted = np.arange(max(start, first), end, dtype=np.int32)
        scores = np.empty((len(counted), vocab), np.float32)
        runtime.execute(_step(ids, start, end, counted), scores)
        if len(counted):
            yield scores, ids[counted + 1]


def _step(ids: Int32s, start: Tokens, end: Tokens, counted: Int32s) -> StepInput:
    return StepInput(
        tokens=ids[start:end],
        positions=np.arange(start, end, dtype=np.int32),
        starts=np.array([0, end - start], np.int32),
        block_tables=np.arange(blocks_for(len(ids)), dtype=np.int32)[None],
        logit_rows=counted - np.int32(start),
        sampling=sampling_rows([SamplingParams(temperature=0)] * len(counted), (counted + 1).tolist()),
    )


class Softmax(NamedTuple):
    """Of one row of scores (vocab,), as exp(scores - peak) / total: float32 but for the sum, right to about 1e-7."""

    peak: np.float32
    exponentials: Floats
    total: float

    def loss(self, score: np.float32) -> float:
        """The negative log-likelihood, in nats, of the token with this score."""
        return math.log(self.total) - float(score - self.peak)


def softmax(scores: Floats) -> Softmax:
    """One row at a time: the passes over a large vocabulary then stay in the cache."""
    peak = scores.max()
    exponentials = scores - peak
    np.exp(exponentials, out=exponentials)
    return Softmax(peak, exponentials, float(exponentials.sum(dtype=np.float64)))
