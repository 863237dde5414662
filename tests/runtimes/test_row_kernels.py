"""The kernels on rows of activations, on every instruction set of this machine, against NumPy in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.runtimes.cpu import _native

pytestmark = pytest.mark.parametrize("isa", _native.available_isas())

seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 200)


def normal(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def bits(x):
    return x.view(np.uint32)


def expected_quantized(x):
    groups = -(-len(x) // 32)
    padded = np.zeros((groups, 32), np.float32)
    padded.flat[: len(x)] = x
    amax = np.abs(padded).max(axis=1)
    values = np.rint(padded * (np.float32(127) / amax)[:, None])
    scales = amax / np.float32(127)
    return values.ravel(), scales, scales * values.sum(axis=1, dtype=np.float32)


@settings(max_examples=40)
@given(seed=seeds, n=lengths, exponent=st.integers(-30, 30))
def test_quantize_rounds_to_nearest_even_of_127_steps_a_group(isa, seed, n, exponent):
    x = normal(seed, n, scale=10.0**exponent)
    values, scales, sums = _native.quantize(x, isa)
    want_values, want_scales, want_sums = expected_quantized(x)
    np.testing.assert_array_equal(values, want_values)
    np.testing.assert_array_equal(scales, want_scales)
    np.testing.assert_array_equal(sums, want_sums)


def test_quantize_ties_go_to_even(isa):
    x = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5], np.float32)
    np.testing.assert_array_equal(_native.quantize(x, isa)[0][:7], [127, 0, 2, 2, 0, -2, 126])


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38])
def test_quantize_of_nothing_is_zeros_with_scale_zero(isa, largest):
    x = np.zeros(32, np.float32)
    x[3] = largest
    values, scales, sums = _native.quantize(x, isa)
    assert not values.any()
    assert scales[0] == 0
    assert sums[0] == 0


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 13, 31])
def test_quantize_keeps_what_is_not_finite_in_its_group(isa, bad, place):
    x = normal(1, 96)
    clean = _native.quantize(x, isa)
    x[32 + place] = bad
    values, scales, sums = _native.quantize(x, isa)
    assert not values[32:64].any()
    assert not np.isfinite(scales[1])
    assert np.isnan(sums[1])
    for before, after in zip(clean, (values, scales, sums), strict=True):
        np.testing.assert_array_equal(after.reshape(3, -1)[[0, 2]], before.reshape(3, -1)[[0, 2]])


@settings(max_examples=40)
@given(seed=seeds, n=lengths, scale=st.sampled_from([1e-10, 1e-3, 1.0, 1e5]), eps=st.sampled_from([0.0, 1e-5, 1.0]))
def test_rms_norm(isa, seed, n, scale, eps):
    x, weight = normal(seed, n, scale=scale), normal(seed + 1, n)
    wide = x.astype(np.float64)
    want = wide / np.sqrt(np.mean(wide**2) + eps) * weight
    np.testing.assert_allclose(_native.rms_norm(x, weight, eps, isa), want, rtol=2e-6)


def expected_gate(x, activation):
    if activation == "silu":
        return x * np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    if activation == "clamped_swiglu":
        return expected_gate(1.702 * np.minimum(x, 7), "silu") / 1.702
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@settings(max_examples=40)
@given(seed=seeds, n=lengths, scale=st.sampled_from([0.01, 1.0, 10.0, 60.0]))
def test_gated(isa, activation, seed, n, scale):
    gate, up = normal(seed, n, scale=scale), normal(seed + 1, n)
    factor = np.clip(up, -7, 7) + 1.0 if activation == "clamped_swiglu" else up
    want = expected_gate(gate.astype(np.float64), activation) * factor
    # far below zero gelu is a small difference of large numbers, in float64 as well
    np.testing.assert_allclose(_native.gated(gate, up, activation, isa), want, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_saturates_without_overflow(isa, activation):
    gate = np.array([-1e30, -1e4, -200, 0, 200, 1e4, 1e30], np.float32)
    want = np.maximum(gate, 0)
    np.testing.assert_array_equal(_native.gated(gate, np.ones_like(gate), activation, isa), want)


def test_the_exponential_is_within_two_units_in_the_last_place(isa):
    x = -np.geomspace(1e-3, 80, 20_000).astype(np.float32)
    got = _native.gated(x, (1 / x).astype(np.float32), "silu", isa)  # e^x / (1 + e^x), within the rounding of 1 / x
    want = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(got / want - 1).max() < 5 * 2.0**-23


@settings(max_examples=40)
@given(seed=seeds, n=lengths, cap=st.sampled_from([0.5, 30.0, 50.0]), scale=st.sampled_from([0.01, 10.0, 1e4, 1e30]))
def test_a_soft_cap_bends_scores(isa, seed, n, cap, scale):
    x = normal(seed, n, scale=scale)
    want = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(_native.soft_cap(x, cap, isa), want, atol=cap * 2**-21)


@settings(max_examples=40)
@given(seed=seeds, n=lengths, split=st.integers(0, 200))
def test_columns_may_be_shared_out_anywhere(isa, seed, n, split):
    gate, up = normal(seed, n, scale=3), normal(seed + 1, n)
    kernels = [
        lambda a, b: _native.gated(a, b, "silu", isa),
        lambda a, b: _native.gated(a, b, "gelu_tanh", isa),
        lambda a, b: _native.gated(a, b, "clamped_swiglu", isa),
        lambda a, b: _native.soft_cap(a, 2.0, isa),
        lambda a, b: _native.add(a, b, isa),
    ]
    for kernel in kernels:
        parts = [kernel(gate[:split], up[:split]), kernel(gate[split:].copy(), up[split:].copy())]
        np.testing.assert_array_equal(bits(kernel(gate, up)), bits(np.concatenate(parts)))


@settings(max_examples=40)
@given(seed=seeds, n=lengths, groups=st.integers(0, 6))
def test_groups_are_quantized_alone(isa, seed, n, groups):
    x, split = normal(seed, n), 32 * groups
    parts = [_native.quantize(part, isa) for part in (x[:split], x[split:].copy())]
    for whole, *halves in zip(_native.quantize(x, isa), *parts, strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(halves))


@settings(max_examples=40)
@given(seed=seeds, n=lengths)
def test_add_and_scale_are_exact(isa, seed, n):
    x, y = normal(seed, n), normal(seed + 1, n)
    np.testing.assert_array_equal(_native.add(x, y, isa), x + y)
    np.testing.assert_array_equal(_native.scale(x, 0.3, isa), x * np.float32(0.3))


@pytest.mark.parametrize("interleaved", [True, False])
@settings(max_examples=40)
@given(seed=seeds, heads=st.integers(1, 5), half=st.integers(1, 128), rest=st.integers(0, 20))
def test_rotary_turns_pairs_and_leaves_the_rest(isa, interleaved, seed, heads, half, rest):
    x = normal(seed, heads, 2 * half + rest)
    angle = np.random.default_rng(seed).uniform(-10, 10, half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    got = _native.rotary(x, cos, sin, interleaved, isa)
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    turned = (x[:, pairs[0]] + 1j * x[:, pairs[1]]) * np.exp(1j * angle)
    np.testing.assert_allclose(got[:, pairs[0]], turned.real, atol=1e-5)
    np.testing.assert_allclose(got[:, pairs[1]], turned.imag, atol=1e-5)
    np.testing.assert_array_equal(got[:, 2 * half :], x[:, 2 * half :])
    alone = [_native.rotary(x[i : i + 1].copy(), cos, sin, interleaved, isa) for i in range(heads)]
    np.testing.assert_array_equal(bits(np.concatenate(alone)), bits(got))


def test_wrong_arrays_are_refused(isa):
    row = np.zeros(8, np.float32)
    with pytest.raises(TypeError):
        _native.add(row.astype(np.float64), row, isa)
    with pytest.raises(TypeError):
        _native.add(np.zeros(16, np.float32)[::2], row, isa)
    with pytest.raises(ValueError, match="same length"):
        _native.add(row, row[:4], isa)
    with pytest.raises(ValueError, match="same length"):
        _native.rms_norm(row, row[:4], 1e-5, isa)
    with pytest.raises(ValueError, match="half of a head"):
        _native.rotary(row.reshape(1, 8), row, row, True, isa)
    with pytest.raises(ValueError, match="'silu', 'gelu_tanh' or 'clamped_swiglu'"):
        _native.gated(row, row, "relu", isa)


def test_an_unknown_instruction_set_is_refused_with_those_there_are(isa):
    with pytest.raises(ValueError, match=f"'sse9' is not available.*{isa}"):
        _native.add(np.zeros(8, np.float32), np.zeros(8, np.float32), "sse9")
