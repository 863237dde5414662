"""A tensor as it lies in a model file: a format, a shape and a read-only view of the mapped bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING

from lightwell.units import Bytes

if TYPE_CHECKING:  # a server reads headers only, and starts a tenth of a second sooner without it
    import numpy as np
    import numpy.typing as npt


class Format(StrEnum):
    """How values are stored; the names are GGUF's, but for INT4_* and INT8_*.

    These two are what the quantized formats of safetensors become: groups of 32 values, INT4 as a float32 scale, a
    byte of zero point and 16 bytes of nibbles as in Q4_0, meaning scale * (value - zero); INT8 as a float32 scale and
    32 signed bytes. Runs of 32, 64 or 128 values, or a whole row, have one scale and zero point: the name says which.
    I8, I32 and I64 are parts of quantized weights in safetensors files, never a whole weight.
    """

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
    IQ4_NL = "IQ4_NL"
    MXFP4 = "MXFP4"
    INT4_32 = "INT4_32"
    INT4_64 = "INT4_64"
    INT4_128 = "INT4_128"
    INT4_ROW = "INT4_ROW"
    INT8_32 = "INT8_32"
    INT8_64 = "INT8_64"
    INT8_128 = "INT8_128"
    INT8_ROW = "INT8_ROW"
    I8 = "I8"
    I32 = "I32"
    I64 = "I64"

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
    Format.IQ4_NL: (32, 18),
    Format.MXFP4: (32, 17),
    Format.INT4_32: (32, 21),
    Format.INT4_64: (32, 21),
    Format.INT4_128: (32, 21),
    Format.INT4_ROW: (32, 21),
    Format.INT8_32: (32, 36),
    Format.INT8_64: (32, 36),
    Format.INT8_128: (32, 36),
    Format.INT8_ROW: (32, 36),
    Format.I8: (1, 1),
    Format.I32: (1, 4),
    Format.I64: (1, 8),
}
INTEGERS = (Format.I8, Format.I32, Format.I64)


@dataclass(frozen=True)
class Tensor:
    """``shape`` is row-major, (rows, columns) for matrices: a linear layer's rows are its outputs.

    ``data`` is a read-only uint8 array of one dimension holding all rows one after another; for files on disk
    it is a view of the memory map.
    """

    name: str  # the name in the file, for messages
    format: Format
    shape: tuple[int, ...]
    data: "npt.NDArray[np.uint8]"

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def nbytes(self) -> Bytes:
        return self.rows * self.columns // self.format.group_values * self.format.group_bytes


class ComputedTensor(Tensor):
    """One whose bytes are put together each time they are asked for, from a file that stores its parts otherwise."""

    _compute: "Callable[[], npt.NDArray[np.uint8]]"

    def __init__(
        self, name: str, format: Format, shape: tuple[int, ...], compute: "Callable[[], npt.NDArray[np.uint8]]"
    ) -> None:
        for field, value in {"name": name, "format": format, "shape": shape, "_compute": compute}.items():
            object.__setattr__(self, field, value)

    @property
    def data(self) -> "npt.NDArray[np.uint8]":
        return self._compute()
