"""Rotary position embedding in numbers: the frequency of each pair of dimensions, and cosines and sines by position.

Su et al., arXiv:2104.09864. The scalings are defined as Hugging Face's modeling_rope_utils parametrises them.
Everything is computed in float64, so that all runtimes start from the same float32 tables.
"""

import math

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.spec import Rope, RopeScaling

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def inverse_frequencies(rope: Rope) -> Doubles:
    """Radians a token by which each pair of dimensions turns: (dims / 2,)."""
    plain = rope.theta ** -(np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    match rope.scaling:
        case None:
            return plain
        case RopeScaling(kind="linear", factor=factor):
            return plain / factor
        case RopeScaling(kind="factors", factors=factors):
            return plain / np.asarray(factors, np.float64)
        case RopeScaling(kind="llama3") as scaling:
            return _llama3(plain, scaling)
        case scaling:
            return _yarn(plain, rope, scaling)


def rotation(rope: Rope, positions: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Cosines and sines for each position, both times the attention factor: each (positions, dims / 2)."""
    angles = np.multiply.outer(np.asarray(positions, np.float64), inverse_frequencies(rope))
    factor = rope.scaling.attention_factor if rope.scaling else 1.0
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def _llama3(plain: Doubles, scaling: RopeScaling) -> Doubles:
    """Llama 3.1: slow pairs are stretched by ``factor``, fast ones are kept, those between are blended."""
    turns = plain * (scaling.original_context / (2 * math.pi))  # in the trained context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return kept * plain + (1 - kept) * plain / scaling.factor


def _yarn(plain: Doubles, rope: Rope, scaling: RopeScaling) -> Doubles:
    """YaRN (Peng et al., arXiv:2309.00071): as llama3, but the blend is linear in the pair's index."""

    def pair_with(turns: float) -> float:
        """The (fractional) index of the pair that turns this often in the trained context."""
        return rope.dims * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    fast, slow = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, rope.dims - 1)
    width = last - first if last != first else 0.001  # as in the paper's code: a step, not a division by zero
    stretched: Doubles = np.clip((np.arange(rope.dims // 2) - first) / width, 0, 1)
    return (1 - stretched) * plain + stretched * plain / scaling.factor
