"""The arithmetic of ModelSpec, checked by hand on the shapes of published models."""

import dataclasses

import pytest

from lightwell.checkpoints.spec import ModelSpec, Rope, yarn_attention_factor

SMOLLM2 = ModelSpec(
    name="SmolLM2 135M",
    architecture="llama",
    family="llama",
    layers=30,
    width=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ffn_width=1536,
    vocab=49152,
    context_tokens=8192,
    norm_eps=1e-5,
    rope=Rope(100_000.0, 64, interleaved=True),
    activation="silu",
    tied_head=True,
)


def test_kv_bytes_per_token() -> None:
    """Keys and values, 30 layers, 3 heads of 64, two bytes each."""
    assert SMOLLM2.kv_bytes_per_token() == 2 * 30 * 3 * 64 * 2 == 23040
    assert SMOLLM2.kv_bytes_per_token(value_bytes=4) == 46080


def test_parameters_add_up_to_the_name() -> None:
    """134.5 million: 30 layers of 3.54 million, and the token table of 28.3 million that is also the head."""
    layer = 576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536
    assert SMOLLM2.layer_parameters() == layer == 3_538_944
    norms = 30 * 2 * 576 + 576
    assert 30 * layer + 49152 * 576 + norms == 134_515_008


def test_operations_per_token() -> None:
    """Two a weight, and 4 * heads * head_dim a layer for each token seen."""
    weights = 2 * (30 * 3_538_944 + 49152 * 576)
    assert SMOLLM2.operations_per_token(1) == weights + 30 * 4 * 576
    assert SMOLLM2.operations_per_token(1000) == weights + 30 * 4 * 576 * 1000
    assert SMOLLM2.operations_per_token(1, with_head=False) == weights + 30 * 4 * 576 - 2 * 49152 * 576


def test_a_window_bounds_what_a_layer_sees() -> None:
    windowed = dataclasses.replace(SMOLLM2, windows=(512,) * 29 + (None,))
    gained = SMOLLM2.operations_per_token(1000) - windowed.operations_per_token(1000)
    assert gained == 29 * 4 * 576 * (1000 - 512)
    assert windowed.operations_per_token(100) == SMOLLM2.operations_per_token(100)


def test_query_scale() -> None:
    assert SMOLLM2.query_scale == 1 / 8
    assert dataclasses.replace(SMOLLM2, attention_scale=0.5).query_scale == 0.5


def test_rope_by_layer() -> None:
    local = Rope(10_000.0, 64, interleaved=True)
    spec = dataclasses.replace(SMOLLM2, local_rope=local, windows=(512, None) * 15)
    assert (spec.rope_of(0), spec.rope_of(1)) == (local, SMOLLM2.rope)
    assert dataclasses.replace(SMOLLM2, windows=(512,) * 30).rope_of(0) == SMOLLM2.rope


def test_yarn_attention_factor() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(4.0) == pytest.approx(1.1386294)
