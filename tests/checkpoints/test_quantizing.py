"""Quantizers against the gguf package, bit by bit, and the error that is reported against its definition."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.quantizing import ENCODERS, quantize, recode
from lightwell.checkpoints.tensor import Format, Tensor

FORMATS = pytest.mark.parametrize("kind", ENCODERS)


def tensor(values, kind=Format.F32):
    data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType[kind.name])
    return Tensor("t", kind, values.shape, np.ascontiguousarray(data).reshape(-1).view(np.uint8))


@FORMATS
@given(seed=st.integers(0, 2**32), scale=st.floats(-6, 4), rows=st.integers(1, 5))
def test_bytes_are_those_of_the_gguf_package(kind, seed, scale, rows):
    values = (np.random.default_rng(seed).normal(0, 1, (rows, 96)) * 10**scale).astype(np.float32)
    assert np.array_equal(quantize(values, kind), tensor(values, kind).data)


@FORMATS
@given(arrays.arrays(np.float32, (2, 32), elements=st.sampled_from([-8, -7.5, -1, -0.5, 0, 0.5, 1, 3.5, 7.5, 8, 127])))
def test_ties_round_as_in_the_gguf_package(kind, values):
    assert np.array_equal(quantize(values, kind), tensor(values, kind).data)


@FORMATS
def test_zeros_stay_zeros(kind):
    values = np.zeros((2, 64), np.float32)
    recoded = recode(tensor(values), kind)
    assert recoded.error == 0
    assert not dequantize(Tensor("t", kind, values.shape, recoded.data)).any()


@pytest.mark.parametrize("kind", [Format.Q8_0, Format.Q4_0, Format.Q4_1])
@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 32), (5000, 320)])  # the last in several chunks
def test_the_error_is_relative_to_the_values(kind, shape):
    values = np.random.default_rng(1).normal(0, 3, shape).astype(np.float32)
    source = tensor(values, Format.BF16)
    recoded = recode(source, kind)
    exact = dequantize(source).astype(np.float64)
    stored = dequantize(Tensor("t", kind, shape, recoded.data))
    assert np.array_equal(recoded.data, quantize(dequantize(source), kind))
    assert recoded.error == pytest.approx(np.sqrt(np.square(stored - exact).sum() / np.square(exact).sum()), rel=1e-5)


def test_its_own_format_is_left_alone():
    source = tensor(np.random.default_rng(2).normal(0, 1, (2, 64)), Format.Q4_1)
    recoded = recode(source, Format.Q4_1)
    assert recoded.error == 0
    assert np.array_equal(recoded.data, source.data)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_what_has_no_finite_scale_is_refused(value):
    values = np.ones((1, 64), np.float32)
    values[0, 40] = value
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="tensor 't' has values that are not finite"):
        recode(tensor(values), Format.Q8_0)
