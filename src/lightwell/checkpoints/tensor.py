"""A tensor as it lies in a model file: a format, a shape and a read-only view of the mapped bytes."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt


class Format(StrEnum):
    """How values are stored; the names are GGUF's."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"

    @property
    def group_values(self) -> int:
        """Values that are stored together; a row's length is a multiple of it."""
        return _GROUPS[self][0]

    @property
    def group_bytes(self) -> int:
        return _GROUPS[self][1]


_GROUPS = {  # values and bytes of a group
    Format.F32: (1, 4),
    Format.F16: (1, 2),
    Format.BF16: (1, 2),
    Format.Q4_0: (32, 18),
    Format.Q4_1: (32, 20),
    Format.Q5_0: (32, 22),
    Format.Q5_1: (32, 24),
    Format.Q8_0: (32, 34),
    Format.Q4_K: (256, 144),
    Format.Q5_K: (256, 176),
    Format.Q6_K: (256, 210),
}


@dataclass(frozen=True)
class Tensor:
    """``shape`` is row-major, (rows, columns) for matrices: a linear layer's rows are its outputs.

    ``data`` is a read-only uint8 array of one dimension holding all rows one after another; for files on disk
    it is a view of the memory map.
    """

    name: str  # the name in the file, for messages
    format: Format
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=np.int64)) if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        return self.shape[-1]
