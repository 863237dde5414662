"""The counter-based generator: 32 random bits for each (seed, position, token), without any state.

A draw depends on nothing but these three, so neither batch mates, chunking, preemption nor a restart can change it.
The scalar part is the finalizer of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), the part by token that of
MurmurHash3 with half of the key mixed in half way. The native kernel computes the same integers.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Bits64 = TypeVar("Bits64", int, npt.NDArray[np.uint64])

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
_MASK = (1 << 64) - 1


def mix64(z: Bits64) -> Bits64:
    """A permutation of the 64-bit integers in which every input bit moves about half of the output bits.

    For one integer (taken modulo 2**64), or for each of an array.
    """
    x: Any = z & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    mixed: Bits64 = x ^ (x >> 31)
    return mixed


def random_bits(seed: int, position: int, tokens: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """32 random bits for each token id. Different ids of one (seed, position) always get different bits."""
    key = mix64(seed + _GOLDEN * (position + 1))
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    h = np.atleast_1d(np.asarray(tokens, np.uint32)) * np.uint32(0x9E3779B9) + low
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= high
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def gumbel(seed: int, position: int, tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each token id: -log(E) with E exponential, E = -log(1 - u), u in (0, 1)."""
    u = (random_bits(seed, position, tokens) + 0.5) * 2.0**-32
    noise: npt.NDArray[np.float64] = -np.log(-np.log1p(-u))
    return noise
