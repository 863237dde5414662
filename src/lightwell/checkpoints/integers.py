"""Integer weights with scales, as the quantized formats of safetensors store them, in our own INT4 and INT8 blocks.

``Parts`` are the tensors of one quantized linear layer; gptq.py, awq.py and compressed_tensors.py know what they mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.quantized import Floats, dequantize
from lightwell.checkpoints.tensor import INTEGERS, ComputedTensor, Format, Tensor
from lightwell.errors import CheckpointError

Bytes8 = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.signedinteger]

_BLOCK = 32  # columns
_DTYPES: dict[Format, np.dtype[np.signedinteger]] = {
    Format.I8: np.dtype("i1"),
    Format.I32: np.dtype("<i4"),
    Format.I64: np.dtype("<i8"),
}


@dataclass(frozen=True)
class Parts:
    """``tensors`` by what follows the layer's name: for ``model.layers.0.mlp.up_proj.qweight``, ``qweight``."""

    path: Path
    layer: str
    tensors: Mapping[str, Tensor]

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(self.path, f"quantized layer {self.layer!r} {what}")

    def part(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise self.fault(f"has no tensor {name!r}")
        return self.tensors[name]

    def integers(self, name: str, format: Format, shape: tuple[int, ...] | None = None) -> Integers:
        """The values of a part, a view of the file; ``shape`` is the one that it must have."""
        tensor = self.part(name)
        if tensor.format != format or len(tensor.shape) not in (1, 2):
            raise self.fault(f"stores {name!r} as {tensor.format} of shape {tensor.shape}: {format} is needed")
        self._check_shape(tensor, name, shape)
        return tensor.data.view(_DTYPES[format]).reshape(tensor.shape)

    def scales(self, name: str, *shapes: tuple[int, ...]) -> Floats:
        """A part of floats in one of the shapes that it may have, as (rows or 1, the last length)."""
        tensor = self.part(name)
        if tensor.format in INTEGERS:
            raise self.fault(f"stores {name!r} as {tensor.format}: floats are needed")
        if tensor.shape not in shapes:
            self._check_shape(tensor, name, shapes[0])
        return dequantize(tensor)

    def _check_shape(self, tensor: Tensor, name: str, shape: tuple[int, ...] | None) -> None:
        if shape is not None and tensor.shape != shape:
            raise self.fault(f"has {name!r} of the shape {tensor.shape} instead of {shape}")

    def weight(
        self, bits: int, shape: tuple[int, int], group_columns: int, compute: Callable[[], Bytes8]
    ) -> ComputedTensor:
        """The whole weight (outputs, inputs), of which ``group_columns`` inputs have the same scale."""
        if shape[1] % _BLOCK or group_columns % _BLOCK:
            raise self.fault(
                f"has {shape[1]} columns in groups of {group_columns}: both must be multiples of {_BLOCK} here"
            )
        return ComputedTensor(f"{self.layer}.weight", run_format(bits, shape[1], group_columns), shape, compute)

    def check_order(self, name: str, columns: int, group_columns: int) -> None:
        """Where the file says which group each column belongs to, it must be the order in which they lie."""
        if name not in self.tensors:
            return
        groups = self.integers(name, Format.I32, (columns,))
        if (groups != np.arange(columns) // group_columns).any():
            raise self.fault(
                f"has its columns in groups out of order ({name!r}; desc_act or actorder), which is not supported: "
                "choose a version of the model that was quantized without, or with one group a row"
            )


def run_format(bits: int, columns: int, group_columns: int) -> Format:
    if group_columns >= columns:
        return Format[f"INT{bits}_ROW"]
    return Format[f"INT{bits}_{next(run for run in (128, 64, 32) if group_columns % run == 0)}"]


def unpack(words: Integers, bits: int) -> Bytes8:
    """int32 words (rows, columns) as the 4- or 8-bit numbers in each, the lowest first: (rows, columns, 32 / bits)."""
    octets = np.ascontiguousarray(words, "<i4").view(np.uint8).reshape(*words.shape, 4)
    if bits == 8:
        return octets
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*words.shape, 8)


def int4_blocks(values: Bytes8, scales: Floats, zeros: Bytes8, group_columns: int) -> Bytes8:
    """values (rows, columns) of 0..15, scales and zeros (rows, groups): scale * (value - zero)."""
    blocks = _blocks(values.shape, scales, group_columns, 21)
    blocks[:, :, 4] = zeros[:, _groups(values.shape[1], group_columns)]
    halves = values.reshape(*blocks.shape[:2], 2, _BLOCK // 2)
    blocks[:, :, 5:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return _flat(blocks)


def int8_blocks(values: npt.NDArray[np.int8], scales: Floats, group_columns: int) -> Bytes8:
    """values (rows, columns), scales (rows, groups): scale * value."""
    blocks = _blocks(values.shape, scales, group_columns, 36)
    blocks[:, :, 4:] = np.ascontiguousarray(values).view(np.uint8).reshape(*blocks.shape[:2], _BLOCK)
    return _flat(blocks)


def _groups(columns: int, group_columns: int) -> npt.NDArray[np.intp]:
    """The group of each block."""
    return np.arange(0, columns, _BLOCK) // group_columns


def _blocks(shape: tuple[int, ...], scales: Floats, group_columns: int, block_bytes: int) -> Bytes8:
    rows, columns = shape
    blocks = np.empty((rows, columns // _BLOCK, block_bytes), np.uint8)
    of_blocks = scales[:, _groups(columns, group_columns)].astype("<f4")
    blocks[:, :, :4] = np.ascontiguousarray(of_blocks)[..., None].view(np.uint8)
    return blocks


def _flat(blocks: Bytes8) -> Bytes8:
    flat = blocks.reshape(-1)
    flat.setflags(write=False)
    return flat
