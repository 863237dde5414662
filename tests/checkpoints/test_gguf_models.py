"""GGUF metadata to ModelSpec for every architecture, tensor names to ours, and files that do not add up."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.checkpoints import Checkpoint, ModelSpec, open_checkpoint
from lightwell.checkpoints.gguf_model import FAMILIES, our_name
from lightwell.checkpoints.layout import LINEARS
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.spec import Mixture, Rope, RopeScaling
from lightwell.errors import CheckpointError
from tests.checkpoints.gguf_bytes import (
    ARRAY,
    STRING,
    Entry,
    Key,
    data_size,
    f32,
    gguf_bytes,
    gguf_name,
    llama_keys,
    model_tensors,
)

LLAMA = ModelSpec(
    name="m",
    architecture="llama",
    family="llama",
    layers=2,
    width=8,
    heads=2,
    kv_heads=1,
    head_dim=4,
    ffn_width=16,
    vocab=10,
    context_tokens=64,
    norm_eps=float(np.float32(1e-6)),
    rope=Rope(10_000.0, 4, interleaved=True),
    activation="silu",
    tied_head=True,
)
HALVES = Rope(10_000.0, 4, interleaved=False)
QWEN2 = dataclasses.replace(LLAMA, architecture="qwen2", rope=HALVES)
QWEN3 = dataclasses.replace(LLAMA, architecture="qwen3", rope=HALVES, qk_norm=True)
GEMMA3 = dataclasses.replace(
    LLAMA,
    architecture="gemma3",
    family="gemma",
    rope=Rope(1_000_000.0, 4, interleaved=False),
    local_rope=HALVES,
    activation="gelu_tanh",
    qk_norm=True,
    embedding_scale=math.sqrt(8),
    windows=(16, 16),
    post_norms=True,
)
GEMMA2 = dataclasses.replace(
    GEMMA3,
    architecture="gemma2",
    rope=HALVES,
    local_rope=None,
    qk_norm=False,
    windows=(4096, None),
    attention_soft_cap=50.0,
    final_soft_cap=30.0,
)
PHI3 = dataclasses.replace(LLAMA, architecture="phi3", rope=HALVES, tied_head=False)
MIXTRAL = dataclasses.replace(LLAMA, mixture=Mixture(experts=3, per_token=2, ffn_width=16, normalized=True))
QWEN3MOE = dataclasses.replace(
    QWEN3, architecture="qwen3moe", mixture=Mixture(experts=5, per_token=4, ffn_width=6, normalized=True)
)
GPT_OSS = dataclasses.replace(
    MIXTRAL,
    architecture="gpt-oss",
    rope=dataclasses.replace(
        HALVES,
        scaling=RopeScaling("yarn", 4.0, original_context=16, attention_factor=1 + 0.1 * math.log(4), truncate=False),
    ),
    activation="clamped_swiglu",
    windows=(8, None),
    sinks=True,
)
GPT_OSS_KEYS = {
    "expert_count": 3,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "attention__sliding_window": 8,
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 16,
}
Open = Callable[..., Checkpoint]


@pytest.fixture
def open_model(tmp_path: Path) -> Open:
    def write_and_open(keys: list[Key], tensors: list[Entry]) -> Checkpoint:
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf_bytes(keys, tensors))
        return open_checkpoint(path)

    return write_and_open


@pytest.mark.parametrize(
    ("spec", "biases", "keys"),
    [
        (LLAMA, "", {}),
        (LLAMA, "qkvo", {}),
        (dataclasses.replace(LLAMA, tied_head=False), "", {}),
        (dataclasses.replace(LLAMA, architecture="mistral", windows=(5, 5)), "", {"attention__sliding_window": 5}),
        (QWEN2, "qkv", {}),
        (QWEN3, "", {}),
        (GEMMA3, "", {"attention__sliding_window": 16}),
        (GEMMA2, "", {}),
        (
            dataclasses.replace(GEMMA2, windows=(16, None), attention_soft_cap=8.0, final_soft_cap=0.0),
            "",
            {"attention__sliding_window": 16, "attn_logit_softcapping": 8.0, "final_logit_softcapping": 0.0},
        ),
        (PHI3, "", {}),
        (dataclasses.replace(PHI3, windows=(7, 7)), "", {"attention__sliding_window": 7}),
        (MIXTRAL, "", {"expert_count": 3, "expert_used_count": 2}),
        (GPT_OSS, LINEARS, GPT_OSS_KEYS),
        (QWEN3MOE, "", {"expert_count": 5, "expert_used_count": 4, "expert_feed_forward_length": 6}),
        (
            dataclasses.replace(QWEN3MOE, mixture=dataclasses.replace(QWEN3MOE.mixture, normalized=False)),
            "",
            {
                "expert_count": 5,
                "expert_used_count": 4,
                "expert_feed_forward_length": 6,
                "expert_weights_norm": False,
                "expert_gating_func": 1,
            },
        ),
    ],
)
def test_each_architecture(open_model: Open, spec: ModelSpec, biases: Iterable[str], keys: dict[str, Any]) -> None:
    stored = model_tensors(spec, biases)
    checkpoint = open_model(llama_keys(spec.architecture, **keys), stored)
    assert checkpoint.spec == spec
    joined: dict[str, bytes] = {}
    for name, tensor in checkpoint.tensors.items():
        theirs = gguf_name(name, spec.architecture)
        joined[theirs] = joined.get(theirs, b"") + tensor.data.tobytes()
    assert joined == {entry.name: entry.data for entry in stored}
    assert len({tensor.name for tensor in checkpoint.tensors.values()}) == len(checkpoint.tensors)


ROPE_TENSORS = {gguf.MODEL_TENSOR[f"ROPE_{name}"] for name in ("FREQS", "FACTORS_LONG", "FACTORS_SHORT")}
ROPE_TENSORS |= {gguf.MODEL_TENSOR.ATTN_ROT_EMBD}  # an old name of what the metadata states


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_tensors_are_called_as_the_gguf_package_calls_them(architecture: str) -> None:
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    for kind in gguf.MODEL_TENSORS[kinds[{"mistral": "llama"}.get(architecture, architecture)]]:
        if kind not in ROPE_TENSORS:
            assert our_name(f"{gguf.TENSOR_NAMES[kind].format(bid=3)}.weight", architecture), kind


LONGROPE = {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": 1.25}


def rope_factors(*names: str) -> list[Entry]:
    return [f32(f"rope_factors_{name}.weight", (2,), seed) for seed, name in enumerate(names)]


@pytest.mark.parametrize("keys", [LONGROPE, LONGROPE | {"rope__scaling__type": "longrope"}])
def test_phi3_has_two_sets_of_factors(open_model: Open, keys: dict[str, Any]) -> None:
    factors = rope_factors("long", "short")
    spec = open_model(llama_keys("phi3", **keys), [*model_tensors(PHI3), *factors]).spec
    long, short = (tuple(np.frombuffer(entry.data, "<f4").tolist()) for entry in factors)
    stored = RopeScaling("longrope", factors=long, short_factors=short, original_context=32, attention_factor=1.25)
    assert spec == dataclasses.replace(PHI3, rope=dataclasses.replace(HALVES, scaling=stored))
    assert spec.rope_of(0).scaling == RopeScaling("factors", factors=long, original_context=32, attention_factor=1.25)
    served_shorter = dataclasses.replace(spec, context_tokens=32)
    assert served_shorter.rope_of(0).scaling == dataclasses.replace(spec.rope_of(0).scaling, factors=short)


def test_gemma2_27b_scales_attention_by_width_and_heads(open_model: Open) -> None:
    spec = dataclasses.replace(
        GEMMA2, layers=46, head_dim=2, rope=Rope(1e4, 2, False), windows=(4096, None) * 23, attention_scale=0.5
    )
    keys = llama_keys("gemma2", block_count=46, attention__key_length=2, attention__value_length=2)
    assert open_model(keys, model_tensors(spec)).spec == spec


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ({"rope__freq_base": 5e5}, {"rope": Rope(5e5, 4, interleaved=True)}),
        ({"rope__dimension_count": 2}, {"rope": Rope(1e4, 2, interleaved=True)}),
        ({"attention__head_count_kv": None}, {"kv_heads": 2}),
        ({"attention__key_length": 6, "attention__value_length": 6}, {"head_dim": 6, "rope": Rope(1e4, 6, True)}),
        ({"attention__scale": 0.5}, {"attention_scale": 0.5}),
        ({"rope__scaling__type": "none"}, {}),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0},
            {"rope": Rope(1e4, 4, True, RopeScaling("linear", 8.0))},
        ),
        ({"rope__scale_linear": 4.0}, {"rope": Rope(1e4, 4, True, RopeScaling("linear", 4.0))}),
    ],
)
def test_keys_of_llama(open_model: Open, keys: dict[str, Any], changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(LLAMA, **changes)
    assert open_model(llama_keys(**keys), model_tensors(spec)).spec == spec


def test_yarn(open_model: Open) -> None:
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16}
    scaling = open_model(llama_keys(**keys), model_tensors(LLAMA)).spec.rope.scaling
    assert scaling == RopeScaling("yarn", 4.0, original_context=16, attention_factor=1 + 0.1 * math.log(4))


def test_rope_factors_tensor(open_model: Open) -> None:
    factors = Entry("rope_freqs.weight", (2,), np.array([1.0, 8.0], "<f4").tobytes())
    checkpoint = open_model(llama_keys(), [*model_tensors(LLAMA), factors])
    assert checkpoint.spec.rope.scaling == RopeScaling("factors", factors=(1.0, 8.0))
    assert not any("rope" in name for name in checkpoint.tensors)


def test_gemma3_layers_with_and_without_window(open_model: Open) -> None:
    spec = dataclasses.replace(GEMMA3, layers=7, windows=(16,) * 5 + (None, 16))
    keys = llama_keys("gemma3", attention__sliding_window=16, block_count=7)
    found = open_model(keys, model_tensors(spec)).spec
    assert found == spec
    assert [found.rope_of(layer).theta for layer in range(7)] == [1e4] * 5 + [1e6, 1e4]


def test_gemma3_27b_scales_attention_by_width_and_heads(open_model: Open) -> None:
    spec = dataclasses.replace(GEMMA3, layers=62, head_dim=2, rope=Rope(1e6, 2, False))
    keys = llama_keys(
        "gemma3", attention__sliding_window=16, block_count=62, attention__key_length=2, attention__value_length=2
    )
    assert open_model(keys, model_tensors(spec)).spec.query_scale == 4**-0.5


def test_gemma3_linear_scaling_is_for_the_layers_without_window(open_model: Open) -> None:
    keys = {"attention__sliding_window": 16, "rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    spec = open_model(llama_keys("gemma3", **keys), model_tensors(GEMMA3)).spec
    assert spec.rope.scaling == RopeScaling("linear", 8.0)
    assert spec.local_rope is not None
    assert spec.local_rope.scaling is None


def test_tokenizer_template_and_vocabulary(open_model: Open) -> None:
    keys = [
        *llama_keys(vocab_size=None),
        ("general.name", STRING, "A name"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, list("abcdefghij"))),
        ("tokenizer.chat_template", STRING, "{{ messages }}"),
    ]
    checkpoint = open_model(keys, model_tensors(LLAMA))
    assert (checkpoint.spec.name, checkpoint.spec.vocab) == ("A name", 10)
    assert checkpoint.tokenizer["tokenizer.ggml.tokens"] == list("abcdefghij")
    assert checkpoint.chat_template == "{{ messages }}"


def test_pages_can_be_released_and_are_read_again(open_model: Open) -> None:
    checkpoint = open_model(llama_keys(), model_tensors(LLAMA))
    before = dequantize(checkpoint.tensors["embed.weight"])
    checkpoint.release_pages()
    assert np.array_equal(dequantize(checkpoint.tensors["embed.weight"]), before)


KEY_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"block_count": None}, "key 'llama.block_count' is missing"),
    ({"attention__layer_norm_rms_epsilon": None}, "key 'llama.attention.layer_norm_rms_epsilon' is missing"),
    ({"vocab_size": None}, "key 'llama.vocab_size' is missing"),
    ({"embedding_length": "eight"}, "key 'llama.embedding_length' is 'eight': a whole number is needed"),
    ({"embedding_length": 0}, "key 'llama.embedding_length' is '0'"),
    ({"embedding_length": True}, "key 'llama.embedding_length' is 'True'"),
    ({"block_count": 4_000_000_000}, "key 'llama.block_count' is 4000000000, but there are 20 tensors"),
    ({"embedding_length": 7}, "'llama.attention.key_length' is missing and 2 heads do not divide 7"),
    ({"attention__value_length": 8}, "'llama.attention.value_length' is 8 and keys are 4 long"),
    ({"attention__head_count_kv": 3}, "has 2 query heads, which is no multiple of its 3 key heads"),
    ({"rope__dimension_count": 3}, "'llama.rope.dimension_count' is 3"),
    ({"rope__dimension_count": 6}, "'llama.rope.dimension_count' is 6: an even number up to 4"),
    ({"rope__freq_base": float("nan")}, "'llama.rope.freq_base' is 'nan'"),
    ({"rope__scaling__type": "longrope"}, "'llama.rope.scaling.type' is 'longrope': supported are"),
    ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, "'llama.rope.scaling.factor' is '0.0'"),
    ({"expert_count": 8}, "key 'llama.expert_used_count' is missing"),
    ({"expert_count": 8, "expert_used_count": 9}, "key 'llama.expert_used_count' is 9 of 8 experts"),
    ({"expert_count": 8000, "expert_used_count": 2}, "states 8000 experts, but there are 20 tensors"),
    ({"expert_count": 8, "expert_used_count": 2}, "has no tensor for layers.0.router.weight"),
    ({"expert_gating_func": 2}, "key 'llama.expert_gating_func' is 2, which is not supported"),
    ({"expert_shared_count": 1}, "key 'llama.expert_shared_count' is 1, which is not supported"),
    ({"final_logit_softcapping": 30.0}, "key 'llama.final_logit_softcapping' is 30.0"),
]


@pytest.mark.parametrize(("keys", "message"), KEY_FAULTS)
def test_key_faults(open_model: Open, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_model(llama_keys(**keys), model_tensors(LLAMA))
    assert message in caught.value.message


def test_unsupported_architecture(open_model: Open) -> None:
    with pytest.raises(CheckpointError, match="'mamba' is not supported; supported are llama, mistral, qwen2"):
        open_model(llama_keys("mamba"), [])


def without(name: str) -> Callable[[list[Entry]], list[Entry]]:
    return lambda tensors: [entry for entry in tensors if entry.name != name]


TENSOR_FAULTS: list[tuple[ModelSpec, Iterable[str], Callable[[list[Entry]], list[Entry]], str]] = [
    (LLAMA, "", without("blk.1.ffn_up.weight"), "has no tensor for layers.1.up.weight"),
    (LLAMA, "", without("token_embd.weight"), "has no tensor for embed.weight"),
    (QWEN2, "", lambda t: t, "has no tensor for layers.0.q.bias"),
    (LLAMA, "qk", without("blk.1.attn_k.bias"), "has no tensor for layers.1.k.bias"),
    (GPT_OSS, LINEARS - {"router"}, lambda t: t, "has no tensor for layers.0.router.bias"),
    (GPT_OSS, LINEARS, without("blk.1.attn_sinks.weight"), "has no tensor for layers.1.sinks.weight"),
    (QWEN3, "", without("blk.0.attn_q_norm.weight"), "has no tensor for layers.0.q_norm.weight"),
    (LLAMA, "", lambda t: [*t, f32("blk.0.attn_sinks.weight", (2,))], "tensor 'blk.0.attn_sinks.weight' is not part"),
    (LLAMA, "", lambda t: [*t, f32("blk.0.attn_q_norm.weight", (4,))], "tensor 'blk.0.attn_q_norm.weight' is not part"),
    (LLAMA, "", lambda t: [*t, f32("blk.2.attn_norm.weight", (8,))], "tensor 'blk.2.attn_norm.weight' is not part"),
    (LLAMA, "", lambda t: [*t, f32("layers.0.q.weight", (8, 8))], "tensor 'layers.0.q.weight' is not part"),
    (LLAMA, "", lambda t: [*t, f32("blk.00.attn_q.weight", (8, 8))], "tensor 'blk.00.attn_q.weight' is not part"),
    (QWEN2, "qkv", lambda t: [*t, f32("blk.0.attn_qkv.weight", (16, 8))], "'blk.0.attn_qkv.weight' is not part of any"),
    (PHI3, "", lambda t: [*without("blk.0.attn_qkv.weight")(t), f32("blk.0.attn_qkv.weight", (15, 8))], "has 15 rows"),
    (PHI3, "", lambda t: [*t, f32("blk.0.attn_q.weight", (8, 8))], "are the same part"),
    (PHI3, "", lambda t: [*t, *rope_factors("long")], "has rope_factors_long.weight without its counterpart"),
    (MIXTRAL, "", lambda t: [*t, f32("blk.0.ffn_gate.weight", (16, 8))], "'blk.0.ffn_gate.weight' is not part"),
    (MIXTRAL, "", without("blk.1.ffn_up_exps.weight"), "has no tensor for layers.1.experts.0.up.weight"),
    (
        MIXTRAL,
        "",
        lambda t: [*without("blk.1.ffn_up_exps.weight")(t), f32("blk.1.ffn_up_exps.weight", (2, 16, 8))],
        "has no tensor for layers.1.experts.2.up.weight",
    ),
    (
        MIXTRAL,
        "",
        lambda t: [*without("blk.1.ffn_up_exps.weight")(t), f32("blk.1.ffn_up_exps.weight", (4, 16, 8))],
        "tensor 'blk.1.ffn_up_exps.weight[3:4]' is not part of",
    ),
    (LLAMA, "", lambda t: [*t, f32("rope_freqs.weight", (3,))], "has the shape (3,) instead of (2,)"),
    (LLAMA, "", lambda t: [*t, f32("output.weight", (9, 8))], "tensor 'output.weight' has the shape (9, 8) instead of"),
]


EXPERT_KEYS = {MIXTRAL: {"expert_count": 3, "expert_used_count": 2}, GPT_OSS: GPT_OSS_KEYS}


@pytest.mark.parametrize(("spec", "biases", "change", "message"), TENSOR_FAULTS)
def test_tensor_faults(
    open_model: Open, spec: ModelSpec, biases: Iterable[str], change: Callable[[list[Entry]], list[Entry]], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_model(llama_keys(spec.architecture, **EXPERT_KEYS.get(spec, {})), change(model_tensors(spec, biases)))
    assert message in caught.value.message


def test_a_key_that_nobody_knows_is_reported(open_model: Open, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_model(llama_keys(attention__novelty=3), model_tensors(LLAMA))
    assert "'llama.attention.novelty' is not known" in caplog.text


def test_nothing_is_reported_of_a_plain_model(open_model: Open, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_model(llama_keys(), model_tensors(LLAMA))
    assert not caplog.records


WHOLE = gguf_bytes(llama_keys(), model_tensors(LLAMA))
HEADER_BYTES = len(WHOLE) - data_size(model_tensors(LLAMA))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, HEADER_BYTES), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_header_gives_a_model_or_an_error(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(WHOLE)
    for place, value in flips:
        damaged[place] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return
    assert checkpoint.tensors["layers.1.down.weight"].shape == (8, 16)


@pytest.mark.slow
def test_smollm2(smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_checkpoint(smollm2)
    spec = checkpoint.spec
    assert (spec.layers, spec.width, spec.heads, spec.kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab, spec.context_tokens, spec.tied_head) == (49152, 8192, True)
    assert spec.rope == Rope(100_000.0, 64, interleaved=True)
    assert spec.kv_bytes_per_token("f16") == 23040
    assert checkpoint.chat_template is not None
    assert not caplog.records


@pytest.mark.slow
def test_gemma3(gemma3: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_checkpoint(gemma3)
    spec = checkpoint.spec
    assert (spec.layers, spec.width, spec.heads, spec.kv_heads, spec.head_dim) == (18, 640, 4, 1, 256)
    assert [layer for layer in range(18) if spec.window(layer) is None] == [5, 11, 17]
    assert spec.window(0) == 512
    assert spec.query_scale == 1 / 16
    assert checkpoint.chat_template is None
    assert not caplog.records
