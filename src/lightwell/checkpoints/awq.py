"""AWQ layers (Lin et al., arXiv:2306.00978) in AutoAWQ's "gemm" layout.

``qweight`` is (inputs, outputs / 8): each int32 has eight outputs of one input, 0 2 4 6 1 3 5 7 from its low end up.
``qzeros`` (groups, outputs / 8) are packed likewise, ``scales`` are (groups, outputs).
"""

from collections.abc import Callable

import numpy as np

from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.integers import Bytes8, Integers, Parts, int4_blocks, unpack
from lightwell.checkpoints.tensor import Format, Tensor

PARTS = frozenset({"qweight", "qzeros", "scales"})
_BITS, _NUMBERS = 4, 8
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # where each of the eight outputs lies in a word


def reader(config: Fields) -> Callable[[Parts], Tensor]:
    """How to read a layer, by quantization_config. Raises CheckpointError for a kind that is not known."""
    if config.count("bits", _BITS) != _BITS:
        raise config.unfit("bits", "4 is supported")
    if config.get("version", str, "gemm").lower() != "gemm":
        raise config.unfit("version", "gemm is supported")
    group_size = config.get("group_size", int)
    if group_size != -1 and group_size < 1:
        raise config.unfit("group_size", "a number from 1 up is needed, or -1 for whole rows")
    return lambda parts: _weight(parts, group_size)


def _weight(parts: Parts, group_size: int) -> Tensor:
    words = parts.integers("qweight", Format.I32)
    columns, rows = words.shape[0], words.shape[-1] * _NUMBERS
    group_columns = columns if group_size == -1 else group_size
    groups = -(-columns // group_columns)
    scales = parts.scales("scales", (groups, rows)).T
    zeros = _outputs_first(parts.integers("qzeros", Format.I32, (groups, rows // _NUMBERS)))
    return parts.weight(
        _BITS,
        (rows, columns),
        group_columns,
        lambda: int4_blocks(_outputs_first(words), scales, zeros, group_columns),
    )


def _outputs_first(words: Integers) -> Bytes8:
    """(inputs or groups, outputs / 8) words as (outputs, inputs or groups) numbers."""
    return unpack(words, _BITS)[:, :, _PLACES].reshape(len(words), -1).T
