"""Float32 to stored formats by round-to-nearest, each group of 32 by itself: the counterpart of quantized.py.

The rules are ggml's reference quantizers (quantize_row_q4_0_ref and its neighbours in ggml-quants.c): they fix which
value of a group the scale is taken from, and how ties round. Scales and minima are float16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.fused import cut
from lightwell.checkpoints.quantized import Floats, Groups, dequantize
from lightwell.checkpoints.tensor import Format, Tensor

_CHUNK_VALUES = 1 << 20  # of a large table at once: bounds memory, and stays near the caches


@dataclass(frozen=True)
class Recoded:
    """``data`` are the stored bytes; ``error`` is relative: the RMS of the differences over that of the values."""

    data: npt.NDArray[np.uint8]
    error: float


def recode(tensor: Tensor, format: Format) -> Recoded:
    """The tensor's values in another format; in its own, its bytes as they are.

    Raises ValueError where a value or a scale is not finite, as the error then says nothing.
    """
    stored = Tensor(tensor.name, tensor.format, (tensor.rows, tensor.columns), tensor.data)
    if format == tensor.format:
        return Recoded(stored.data, 0.0)
    step = max(1, _CHUNK_VALUES // tensor.columns)
    done = [
        _recode(cut(stored, begin, min(begin + step, tensor.rows)), format) for begin in range(0, tensor.rows, step)
    ]
    lost, power = sum(part[1] for part in done), sum(part[2] for part in done)
    if not np.isfinite(lost + power):
        raise ValueError(f"tensor {tensor.name!r} has values that are not finite in {format}")
    return Recoded(np.concatenate([part[0] for part in done]), float(np.sqrt(lost / power)) if power else 0.0)


def _recode(rows: Tensor, format: Format) -> tuple[npt.NDArray[np.uint8], float, float]:
    """The bytes, and the sums of squares of the differences and of the values."""
    values = dequantize(rows)
    data = quantize(values, format)
    difference = dequantize(Tensor(rows.name, format, rows.shape, data)) - values
    return data, _squares(difference), _squares(values)


def _squares(values: Floats) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def quantize(values: Floats, format: Format) -> npt.NDArray[np.uint8]:
    """The bytes of float32 values (..., columns), rows one after another; columns are whole groups of the format.

    Raises KeyError for a format that is not written here.
    """
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, format.group_values)
    return ENCODERS[format](groups).reshape(-1)


def _f32(groups: Floats) -> Groups:
    return groups.view(np.uint8)


def _q8_0(groups: Floats) -> Groups:
    """The largest magnitude becomes 127; halves round away from zero."""
    scales = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    scaled = groups * _inverse(scales)
    whole = np.trunc(scaled)
    whole += np.trunc(2 * (scaled - whole))
    return np.concatenate([_halves(scales), whole.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(groups: Floats) -> Groups:
    """The value of largest magnitude becomes -8, whatever its sign; the other side ends at 7."""
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-8)
    return np.concatenate([_halves(scales), _nibbles(groups * _inverse(scales) + np.float32(8.5))], axis=1)


def _q4_1(groups: Floats) -> Groups:
    """The smallest value becomes 0 and the largest 15."""
    low = groups.min(axis=1, keepdims=True)
    scales = (groups.max(axis=1, keepdims=True) - low) / np.float32(15)
    scaled = (groups - low) * _inverse(scales) + np.float32(0.5)
    return np.concatenate([_halves(scales), _halves(low), _nibbles(scaled)], axis=1)


def _inverse(scales: Floats) -> Floats:
    """1 / scale; 0 for a group of zeros."""
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


def _halves(column: Floats) -> Groups:
    with np.errstate(over="ignore"):  # an infinite scale shows in the error
        return column.astype("<f2").view(np.uint8)


def _nibbles(values: Floats) -> Groups:
    """Values cut to whole numbers from 0 to 15; the first half of a group in the low halves of the bytes."""
    whole = np.clip(values, 0, 15).astype(np.uint8)
    half = whole.shape[1] // 2
    return whole[:, :half] | whole[:, half:] << np.uint8(4)


ENCODERS: dict[Format, Callable[[Floats], Groups]] = {
    Format.F32: _f32,
    Format.Q8_0: _q8_0,
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
}
