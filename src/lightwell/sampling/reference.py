"""What it means to choose a token, in NumPy: the definition that every runtime's sampler must agree with.

The draw is a Gumbel-max: adding independent Gumbel noise to the scaled scores and taking the largest draws a token
from their softmax (Maddison, Tarlow & Minka, "A* Sampling", NeurIPS 2014). The noise is a function of
(seed, position, token) alone, which buys two things that drawing from a cumulative sum does not have:
nothing depends on the history of a generator, so the same request gives the same bytes in any batch; and two models
that share the noise mostly pick the same token where their scores are close, so a small draft model's guesses are
accepted about as often as with rejection sampling.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lightwell.sampling.edits import Edits
from lightwell.sampling.noise import gumbel
from lightwell.sampling.params import SamplingParams

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def constrained(scores: Floats, edits: Edits | None = None, allowed: Bools | None = None) -> Floats:
    """The scores (vocab,) that a token is drawn from: edited, then -inf where a token is not ``allowed`` (vocab,).

    An edit is computed in double and rounded once; before and after, a denormal counts as zero, as it does in a native
    step. Where a mask leaves no score above -inf, the first token that it allows gets the score 0: whatever the
    scores and edits are, a draw keeps to a mask that allows anything.
    """
    scores = scores.copy()
    if edits is not None:
        scores[edits.tokens] = _edited(scores[edits.tokens], edits)
    if allowed is not None:
        scores[~allowed] = -np.inf
        if allowed.any() and not (scores > -np.inf).any():
            scores[np.argmax(allowed)] = 0
    return scores


def _edited(scores: Floats, edits: Edits) -> Floats:
    before = _without_denormals(scores.astype(np.float64))
    factors, addends = edits.factors.astype(np.float64), _without_denormals(edits.addends.astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):
        after = np.where(before > 0, before / factors, before * factors) + addends
        return _without_denormals(after).astype(np.float32)


def _without_denormals(values: Doubles) -> Doubles:
    return np.where(np.abs(values) < _SMALLEST_NORMAL, 0.0, values)


def choose(scores: Floats, params: SamplingParams, position: int) -> int:
    """The token for one row of raw scores (vocab,), drawn for this position of the sequence.

    Parameters count as float32, as they travel in a step. A NaN score never wins. Where the best score is infinite
    there is no distribution to draw from, and the choice is greedy.
    """
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    temperature = float(np.float32(params.temperature))
    if temperature == 0 or not np.isfinite(scores.max()):
        return int(np.argmax(scores))  # the first, so the lowest id, among equals
    scaled = scores.astype(np.float64) / temperature
    kept = candidates(scaled, params)
    noisy = scaled[kept] + gumbel(params.seed, position, kept)
    return int(kept[noisy == noisy.max()].min())


def candidates(scaled: Doubles, params: SamplingParams) -> Ids:
    """The ids that the filters leave, best first: top-k, then top-p, then min-p, each on what is left by then."""
    best_first = np.argsort(-scaled, kind="stable")
    kept = best_first[: params.top_k or None]
    weights = np.exp(scaled[kept] - scaled[kept[0]])  # softmax, up to a factor
    cumulative = np.cumsum(weights)
    if (top_p := float(np.float32(params.top_p))) < 1:
        count = int(np.argmax(cumulative >= top_p * cumulative[-1])) + 1
        kept, weights = kept[:count], weights[:count]
    left: Ids = kept[weights >= float(np.float32(params.min_p))]
    return left


def log_probabilities(scores: Floats) -> Doubles:
    """Natural log-softmax of raw scores (vocab,): the model's own, before temperature and filters.

    A NaN score counts as impossible; where the best score is infinite all are NaN, as there is no distribution.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores.astype(np.float64))
    shifted = scores - scores.max()
    logs: Doubles = shifted - np.log(np.exp(shifted).sum())
    return logs


def best(scores: Floats, count: int) -> Ids:
    """The ``count`` ids with the highest scores, best first, the lowest id first among equals."""
    return np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")[:count]
