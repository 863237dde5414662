"""The arithmetic of ModelSpec, checked by hand on the shapes of published models."""

import dataclasses

import pytest

from lightwell.checkpoints.spec import (
    Mixture,
    ModelSpec,
    Rope,
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

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
    assert SMOLLM2.kv_bytes_per_token("f16") == 2 * 30 * 3 * 64 * 2 == 23040
    assert SMOLLM2.kv_bytes_per_token("f32") == 46080
    assert SMOLLM2.kv_bytes_per_token("int8") == 2 * 30 * 3 * (64 + 4) == 12240


def test_parameters_add_up_to_the_name() -> None:
    """134.5 million: 30 layers of 3.54 million, and the token table of 28.3 million that is also the head."""
    layer = 576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536
    assert SMOLLM2.layer_parameters() == layer == 3_538_944
    norms = 30 * 2 * 576 + 576
    assert SMOLLM2.parameters() + norms == 30 * layer + 49152 * 576 + norms == 134_515_008


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


def test_a_token_is_multiplied_with_its_chosen_experts_only() -> None:
    """Mixtral 8x7B: 46.7 billion parameters, of which a token uses 12.9 billion (arXiv:2401.04088)."""
    mixtral = dataclasses.replace(
        SMOLLM2,
        layers=32,
        width=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn_width=14336,
        vocab=32000,
        tied_head=False,
        mixture=Mixture(experts=8, per_token=2, ffn_width=14336, normalized=True),
    )
    expert, attention, router = 3 * 4096 * 14336, 4096 * 128 * (2 * 32 + 2 * 8), 4096 * 8
    assert mixtral.layer_parameters() == attention + router + 8 * expert
    assert mixtral.layer_parameters(active=True) == attention + router + 2 * expert
    assert round(mixtral.parameters() / 1e9, 1) == 46.7
    assert round((mixtral.operations_per_token(0) // 2 + 32000 * 4096) / 1e9, 1) == 12.9  # with the token table


def test_dense_layers_of_a_mixture_count_as_such() -> None:
    mixed = Mixture(experts=4, per_token=1, ffn_width=100, normalized=True, dense_layers=frozenset({0, 5}))
    spec = dataclasses.replace(SMOLLM2, mixture=mixed)
    assert spec.layer_parameters(5) == SMOLLM2.layer_parameters()
    assert spec.layer_parameters(1) == SMOLLM2.layer_parameters() - 3 * 576 * 1536 + 4 * 576 + 4 * 3 * 576 * 100
    saved = 28 * (3 * 576 * 1536 - 4 * 576 - 3 * 576 * 100)
    assert SMOLLM2.operations_per_token(9) - spec.operations_per_token(9) == 2 * saved


def test_longrope_chooses_its_factors_by_the_context() -> None:
    scaling = RopeScaling("longrope", factors=(4.0,), short_factors=(2.0,), original_context=4096, attention_factor=1.2)
    spec = dataclasses.replace(SMOLLM2, rope=Rope(1e4, 2, False, scaling))
    for context, factors in ((8192, (4.0,)), (4097, (4.0,)), (4096, (2.0,)), (100, (2.0,))):
        used = dataclasses.replace(spec, context_tokens=context).rope_of(3).scaling
        assert used == RopeScaling("factors", factors=factors, original_context=4096, attention_factor=1.2)


def test_longrope_attention_factor() -> None:
    """Phi-3 mini 128k: 131,072 tokens from 4,096."""
    assert longrope_attention_factor(32, 4096) == pytest.approx(1.1902380714)
    assert longrope_attention_factor(1, 4096) == 1.0


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
