"""GPTQ layers (Frantar et al., arXiv:2210.17323), as AutoGPTQ and GPTQModel store them.

``qweight`` has 32 / bits inputs of one output in each int32, ``scales`` are (groups, outputs), ``qzeros`` the zero
points with outputs packed along the last axis. Format "gptq" stores a zero point less one, "gptq_v2" as it is.
"""

from collections.abc import Callable

import numpy as np

from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.integers import Bytes8, Parts, int4_blocks, int8_blocks, unpack
from lightwell.checkpoints.tensor import Format, Tensor

PARTS = frozenset({"qweight", "qzeros", "scales", "g_idx"})
_LESS_BY = {"gptq": 1, "gptq_v2": 0}


def reader(config: Fields) -> Callable[[Parts], Tensor]:
    """How to read a layer, by quantization_config. Raises CheckpointError for a kind that is not known."""
    bits, stored = config.count("bits"), config.get("checkpoint_format", str, "gptq")
    if bits not in (4, 8):
        raise config.unfit("bits", "4 or 8 are supported")
    if stored not in _LESS_BY:
        raise config.unfit("checkpoint_format", "gptq and gptq_v2 are supported")
    group_size = config.get("group_size", int)
    if group_size != -1 and group_size < 1:
        raise config.unfit("group_size", "a number from 1 up is needed, or -1 for whole rows")
    return lambda parts: _weight(parts, bits, group_size, _LESS_BY[stored])


def _weight(parts: Parts, bits: int, group_size: int, less_by: int) -> Tensor:
    words = parts.integers("qweight", Format.I32)
    numbers = 32 // bits
    columns, rows = words.shape[0] * numbers, words.shape[-1]
    group_columns = columns if group_size == -1 else group_size
    groups = -(-columns // group_columns)
    parts.check_order("g_idx", columns, group_columns)
    scales = parts.scales("scales", (groups, rows)).T
    packed_zeros = parts.integers("qzeros", Format.I32, (groups, -(-rows // numbers)))
    zeros = _zeros(unpack(packed_zeros, bits).reshape(groups, -1)[:, :rows], bits, less_by).T

    def values() -> Bytes8:
        return unpack(words, bits).transpose(1, 0, 2).reshape(rows, columns)

    if bits == 4:
        return parts.weight(
            4, (rows, columns), group_columns, lambda: int4_blocks(values(), scales, zeros, group_columns)
        )
    if (zeros != 128).any():
        raise parts.fault("has 8-bit zero points other than 128, which are not supported: use a symmetric version")
    return parts.weight(
        8, (rows, columns), group_columns, lambda: int8_blocks((values() ^ 128).view(np.int8), scales, group_columns)
    )


def _zeros(stored: Bytes8, bits: int, less_by: int) -> Bytes8:
    """Zero points; one of 0 less one was stored as all ones, so the sum wraps around."""
    return (stored + np.uint8(less_by)) & np.uint8(2**bits - 1)
