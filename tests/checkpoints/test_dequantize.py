"""dequantize against the gguf package, bit by bit, for every format."""

import gguf
import numpy as np
import pytest

from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.tensor import INTEGERS, Format, Tensor

FLOAT16_PLACES = {  # bytes of a group that hold its float16 scales
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q5_0: (0,),
    Format.Q5_1: (0, 2),
    Format.Q8_0: (0,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
    Format.IQ4_NL: (0,),
}
OURS = [kind for kind in Format if kind.startswith("INT")]


def random_tensor(kind: Format, rows: int, groups: int) -> Tensor:
    """Random bits throughout, but scales that are finite."""
    rng = np.random.default_rng(len(kind) + rows)
    data = rng.integers(0, 256, (rows * groups, kind.group_bytes), dtype=np.uint8)
    for place in FLOAT16_PLACES.get(kind, ()):
        data[:, place : place + 2] = rng.normal(0, 1, (len(data), 1)).astype("<f2").view(np.uint8)
    if kind == Format.MXFP4:
        data[:, 0] = rng.integers(2, 250, len(data))
    elif kind not in FLOAT16_PLACES:
        values = rng.normal(0, 1, data.shape[0]).astype(np.float32)
        data = gguf.quants.quantize(values[:, None], gguf.GGMLQuantizationType[kind.name]).view(np.uint8)
    return Tensor("t", kind, (rows, groups * kind.group_values), data.reshape(-1))


@pytest.mark.parametrize("kind", [kind for kind in Format if kind not in OURS and kind not in INTEGERS])
def test_equals_the_gguf_package_bit_for_bit(kind: Format) -> None:
    tensor = random_tensor(kind, rows=7, groups=3)
    stored = tensor.data.reshape(7, -1)
    native = {Format.F32: np.float32, Format.F16: np.float16}.get(kind)
    expected = gguf.quants.dequantize(stored.view(native) if native else stored, gguf.GGMLQuantizationType[kind.name])
    values = dequantize(tensor)
    assert values.dtype == np.float32
    assert values.shape == tensor.shape
    assert np.array_equal(values.view(np.uint32), expected.reshape(values.shape).view(np.uint32))


@pytest.mark.parametrize("kind", [Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q5_1, Format.Q8_0])
def test_undoes_quantization_to_within_half_a_step(kind: Format) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, (4, 96)).astype(np.float32)
    data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name])
    restored = dequantize(Tensor("t", kind, values.shape, data.reshape(-1)))
    step = {Format.Q4_0: 2 / 15, Format.Q4_1: 2 / 15, Format.Q5_0: 2 / 31, Format.Q5_1: 2 / 31, Format.Q8_0: 1 / 127}
    assert np.abs(restored - values).max() < 1.1 * step[kind]


@pytest.mark.parametrize("kind", OURS)
def test_own_formats_are_a_scale_times_an_integer(kind: Format) -> None:
    rng = np.random.default_rng(4)
    scale = rng.normal(0, 1, (6, 1)).astype(np.float32)
    groups = rng.integers(0, 256, (6, kind.group_bytes), dtype=np.uint8)
    groups[:, :4] = scale.view(np.uint8)
    if kind.startswith("INT4"):
        nibbles = groups[:, 5:].astype(int)
        integers = np.concatenate([nibbles & 15, nibbles >> 4], axis=1) - groups[:, 4:5].astype(int)
    else:
        integers = groups[:, 4:].view(np.int8).astype(int)
    values = dequantize(Tensor("t", kind, (2, 96), groups.reshape(-1)))
    assert np.array_equal(values, (scale * integers.astype(np.float32)).reshape(2, 96))


def test_leaves_the_stored_bytes_alone() -> None:
    """The result is a new array even where stored and computed values are the same."""
    tensor = random_tensor(Format.F32, rows=2, groups=4)
    before = tensor.data.copy()
    dequantize(tensor)[:] = 0
    assert np.array_equal(tensor.data, before)
