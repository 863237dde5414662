"""config.json to ModelSpec for every model class, tensor names to ours, and folders that do not add up."""

import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightwell.checkpoints import Format, ModelSpec, open_checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.spec import Mixture, Rope, RopeScaling
from lightwell.errors import CheckpointError
from tests.checkpoints.hf_folder import model_arrays, write_model

LLAMA = ModelSpec(
    name="tiny",
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
    norm_eps=1e-6,
    rope=Rope(10_000.0, 4, interleaved=False),
    activation="silu",
    tied_head=True,
)
GEMMA3 = dataclasses.replace(
    LLAMA,
    architecture="gemma3",
    family="gemma",
    rope=Rope(1_000_000.0, 4, interleaved=False),
    local_rope=Rope(10_000.0, 4, interleaved=False),
    activation="gelu_tanh",
    qk_norm=True,
    attention_scale=0.25,
    embedding_scale=math.sqrt(8),
    windows=(16, 16),
    post_norms=True,
)
GEMMA2 = dataclasses.replace(
    GEMMA3,
    architecture="gemma2",
    rope=LLAMA.rope,
    local_rope=None,
    qk_norm=False,
    attention_scale=1 / 16,
    windows=(4096, None),
    attention_soft_cap=50.0,
    final_soft_cap=30.0,
)
PHI3 = dataclasses.replace(LLAMA, architecture="phi3")
MIXTRAL = dataclasses.replace(
    LLAMA, architecture="mixtral", rope=Rope(1e6, 4, False), mixture=Mixture(3, 2, ffn_width=16, normalized=True)
)
QWEN3MOE = dataclasses.replace(
    LLAMA, architecture="qwen3moe", qk_norm=True, mixture=Mixture(3, 2, ffn_width=6, normalized=False)
)
MIXTRAL_CONFIG = {"num_local_experts": 3, "num_experts_per_tok": 2}
QWEN3MOE_CONFIG = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
NAME = {"_name_or_path": "tiny"}
CLASSES = {"mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CLASSES |= {"llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
CLASSES |= {
    "gpt-oss": "GptOssForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}


def spec_of(folder: Path, architecture: str, **config: Any) -> ModelSpec:
    biases = "qkv" if architecture == "qwen2" else ""
    arrays = model_arrays(architecture, biases=biases)
    return open_checkpoint(write_model(folder, CLASSES[architecture], arrays, **NAME, **config)).spec


def replaced(**changes: Any) -> ModelSpec:
    return dataclasses.replace(LLAMA, **changes)


@pytest.mark.parametrize(
    ("architecture", "config", "expected"),
    [
        ("llama", {}, LLAMA),
        ("llama", {"head_dim": None}, LLAMA),
        ("llama", {"head_dim": "null"}, LLAMA),
        ("llama", {"rope_theta": 5e5, "sliding_window": 7}, replaced(rope=Rope(5e5, 4, False))),
        ("llama", {"partial_rotary_factor": 0.5}, replaced(rope=Rope(1e4, 2, False))),
        ("llama", {"rms_norm_eps": None}, LLAMA),
        ("mistral", {"sliding_window": "null"}, replaced(architecture="mistral")),
        ("mistral", {"sliding_window": 6}, replaced(architecture="mistral", windows=(6, 6))),
        ("mistral", {}, replaced(architecture="mistral", windows=(4096, 4096))),
        ("qwen2", {"sliding_window": 6, "max_window_layers": 1}, replaced(architecture="qwen2")),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
            replaced(architecture="qwen2", windows=(None, 6)),
        ),
        ("qwen3", {}, replaced(architecture="qwen3", qk_norm=True)),
        ("gemma2", {}, GEMMA2),
        (
            "gemma2",
            {"attn_logit_softcapping": "null", "final_logit_softcapping": 8.0, "sliding_window": 7},
            dataclasses.replace(GEMMA2, attention_soft_cap=0.0, final_soft_cap=8.0, windows=(7, None)),
        ),
        ("phi3", {"sliding_window": "null"}, PHI3),
        ("phi3", {"sliding_window": 7}, dataclasses.replace(PHI3, windows=(7, 7))),
        ("phi3", {"rms_norm_eps": None}, dataclasses.replace(PHI3, norm_eps=1e-5)),
        ("mixtral", MIXTRAL_CONFIG, MIXTRAL),
        ("mixtral", MIXTRAL_CONFIG | {"sliding_window": 7}, dataclasses.replace(MIXTRAL, windows=(7, 7))),
        ("qwen3moe", QWEN3MOE_CONFIG, QWEN3MOE),
        (
            "qwen3moe",
            QWEN3MOE_CONFIG | {"norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 7},
            dataclasses.replace(QWEN3MOE, mixture=Mixture(3, 2, 6, normalized=True), windows=(7, 7)),
        ),
        ("gemma3", {"sliding_window": 16, "query_pre_attn_scalar": 16}, GEMMA3),
        (
            "gemma3",
            {"sliding_window": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0},
            dataclasses.replace(GEMMA3, final_soft_cap=30.0),
        ),
        ("gemma3", {}, dataclasses.replace(GEMMA3, attention_scale=1 / 16, windows=(4096, 4096))),
        (
            "gemma3",
            {"sliding_window": 16, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2},
            dataclasses.replace(GEMMA3, windows=(16, None)),
        ),
        (
            "gemma3",
            {
                "sliding_window": 16,
                "query_pre_attn_scalar": 16,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "rope_local_base_freq": 500,
            },
            dataclasses.replace(
                GEMMA3,
                windows=(None, 16),
                rope=Rope(1e6, 4, False, RopeScaling("linear", 8.0)),
                local_rope=Rope(500.0, 4, False),
            ),
        ),
        (
            "gemma3",
            {
                "sliding_window": 16,
                "query_pre_attn_scalar": 16,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
                },
            },
            dataclasses.replace(
                GEMMA3, rope=Rope(2e6, 4, False, RopeScaling("linear", 8.0)), local_rope=Rope(700.0, 4, False)
            ),
        ),
    ],
)
def test_each_model_class(tmp_path: Path, architecture: str, config: dict[str, Any], expected: ModelSpec) -> None:
    assert spec_of(tmp_path, architecture, **config) == expected


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
        (LLAMA3 | {"original_max_position_embeddings": 32}, RopeScaling("llama3", 8.0, 1.0, 4.0, 32)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            RopeScaling("yarn", 4.0, original_context=16, attention_factor=1 + 0.1 * math.log(4)),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0, "beta_fast": 16},
            RopeScaling("yarn", 4.0, original_context=64, beta_fast=16.0),
        ),
    ],
)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rope_scaling(tmp_path: Path, field: str, scaling: dict[str, Any], expected: RopeScaling | None) -> None:
    assert spec_of(tmp_path, "llama", **{field: scaling}).rope == Rope(1e4, 4, False, expected)


SHORT, LONG = [1.0, 1.5], [2.0, 4.0]
FACTORS = {"short_factor": SHORT, "long_factor": LONG}


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize(
    ("config", "scaling", "attention_factor"),
    [
        ({"original_max_position_embeddings": 16}, {}, math.sqrt(1 + math.log(4) / math.log(16))),
        ({}, {"original_max_position_embeddings": 16, "factor": 2.0}, math.sqrt(1 + math.log(2) / math.log(16))),
        ({"original_max_position_embeddings": 16}, {"attention_factor": 1.5}, 1.5),
        ({"original_max_position_embeddings": 64}, {}, 1.0),
    ],
)
def test_phi3_has_two_sets_of_factors(
    tmp_path: Path, kind: str, config: dict[str, Any], scaling: dict[str, Any], attention_factor: float
) -> None:
    found = spec_of(tmp_path, "phi3", rope_scaling={"type": kind, **FACTORS, **scaling}, **config)
    original = (config | scaling)["original_max_position_embeddings"]
    assert found.rope.scaling == RopeScaling(
        "longrope",
        factors=tuple(LONG),
        short_factors=tuple(SHORT),
        original_context=original,
        attention_factor=pytest.approx(attention_factor),
    )
    used = found.rope_of(0).scaling
    assert used is not None
    assert used.factors == tuple(LONG if original < 64 else SHORT)


def test_some_layers_of_a_mixture_are_dense(tmp_path: Path) -> None:
    arrays = model_arrays("qwen3moe")
    dense = {name: values for name, values in model_arrays("qwen3").items() if "layers.0.mlp" in name}
    arrays = dense | {name: values for name, values in arrays.items() if "layers.0.mlp" not in name}
    for changes in ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}):
        checkpoint = open_checkpoint(write_model(tmp_path, CLASSES["qwen3moe"], arrays, **QWEN3MOE_CONFIG, **changes))
        assert checkpoint.spec.mixture == Mixture(3, 2, 6, normalized=False, dense_layers=frozenset({0}))


GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}
GPT_OSS_CONFIG = {"num_local_experts": 3, "num_experts_per_tok": 2, "rope_scaling": GPT_OSS_ROPE, "sliding_window": 8}


def gpt_oss_arrays() -> dict[str, npt.NDArray[np.float32]]:
    """Experts stacked, (inputs, outputs), gate and up in turns."""
    arrays = {name: values for name, values in model_arrays("llama", biases="qkvo").items() if "mlp" not in name}
    shapes = {"router.weight": (3, 8), "router.bias": (3,), "experts.gate_up_proj": (3, 8, 32)}
    shapes |= {"experts.gate_up_proj_bias": (3, 32), "experts.down_proj": (3, 16, 8), "experts.down_proj_bias": (3, 8)}
    for layer in range(2):
        sizes = {f"mlp.{name}": shape for name, shape in shapes.items()} | {"self_attn.sinks": (2,)}
        for seed, (name, shape) in enumerate(sizes.items()):
            values = np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)
            arrays[f"model.layers.{layer}.{name}"] = values
    return arrays


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_gpt_oss(tmp_path: Path, dtype: str) -> None:
    arrays = gpt_oss_arrays()
    checkpoint = open_checkpoint(write_model(tmp_path, CLASSES["gpt-oss"], arrays, dtype, **NAME, **GPT_OSS_CONFIG))
    scaling = RopeScaling("yarn", 4.0, original_context=16, attention_factor=1 + 0.1 * math.log(4), truncate=False)
    assert checkpoint.spec == replaced(
        architecture="gpt-oss",
        rope=Rope(150_000.0, 4, False, scaling),
        activation="clamped_swiglu",
        windows=(8, None),
        mixture=Mixture(3, 2, ffn_width=16, normalized=True),
        sinks=True,
    )
    stored = {name: values[2] for name, values in arrays.items() if "layers.1.mlp.experts" in name}
    prefix, ours = "model.layers.1.mlp.experts.", checkpoint.tensors
    for part, expected in {
        "gate.weight": stored[f"{prefix}gate_up_proj"][:, 0::2].T,
        "up.weight": stored[f"{prefix}gate_up_proj"][:, 1::2].T,
        "up.bias": stored[f"{prefix}gate_up_proj_bias"][1::2],
        "down.weight": stored[f"{prefix}down_proj"].T,
        "down.bias": stored[f"{prefix}down_proj_bias"],
    }.items():
        assert np.allclose(dequantize(ours[f"layers.1.experts.2.{part}"]), expected, rtol=2**-8)
    assert ours["layers.0.sinks.weight"].shape == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swiglu_limit": 5.0}, "'swiglu_limit' is 5.0: supported is 7.0"),
        ({"rope_scaling": None}, "rope scaling is 'default': yarn is what a gpt-oss model has"),
    ],
)
def test_what_gpt_oss_may_not_differ_in(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_model(tmp_path, CLASSES["gpt-oss"], gpt_oss_arrays(), **GPT_OSS_CONFIG | changes)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert message in caught.value.message


def test_fused_tensors_are_cut_into_their_parts(tmp_path: Path) -> None:
    arrays = model_arrays("phi3")
    tensors = open_checkpoint(write_model(tmp_path, CLASSES["phi3"], arrays)).tensors
    for fused, parts in {"self_attn.qkv": "qkv", "mlp.gate_up": ("gate", "up")}.items():
        rows = np.concatenate([dequantize(tensors[f"layers.1.{part}.weight"]) for part in parts])
        assert np.array_equal(rows, arrays[f"model.layers.1.{fused}_proj.weight"])
    assert tensors["layers.1.k.weight"].name == "model.layers.1.self_attn.qkv_proj.weight[8:12]"


def test_experts_get_our_names(tmp_path: Path) -> None:
    arrays = model_arrays("mixtral")
    tensors = open_checkpoint(write_model(tmp_path, CLASSES["mixtral"], arrays, **MIXTRAL_CONFIG)).tensors
    assert np.array_equal(
        dequantize(tensors["layers.1.router.weight"]), arrays["model.layers.1.block_sparse_moe.gate.weight"]
    )
    for ours, theirs in {"gate": "w1", "up": "w3", "down": "w2"}.items():
        stored = arrays[f"model.layers.1.block_sparse_moe.experts.2.{theirs}.weight"]
        assert np.array_equal(dequantize(tensors[f"layers.1.experts.2.{ours}.weight"]), stored)


@pytest.mark.parametrize(("dtype", "kind"), [("F32", Format.F32), ("F16", Format.F16), ("BF16", Format.BF16)])
def test_tensors_get_our_names(tmp_path: Path, dtype: str, kind: Format) -> None:
    arrays = model_arrays("llama", head=True)
    checkpoint = open_checkpoint(write_model(tmp_path, "LlamaForCausalLM", arrays, dtype))
    assert not checkpoint.spec.tied_head
    pairs = {"head": "lm_head", "embed": "model.embed_tokens", "layers.1.down": "model.layers.1.mlp.down_proj"}
    pairs |= {"layers.0.ffn_norm": "model.layers.0.post_attention_layernorm"}
    for ours, theirs in pairs.items():
        tensor = checkpoint.tensors[f"{ours}.weight"]
        assert (tensor.name, tensor.format) == (f"{theirs}.weight", kind)
        assert np.allclose(dequantize(tensor), arrays[f"{theirs}.weight"], rtol=2**-8)


def test_gemma3_norms_become_multipliers(tmp_path: Path) -> None:
    arrays = model_arrays("gemma3")
    tensors = open_checkpoint(write_model(tmp_path, "Gemma3ForCausalLM", arrays)).tensors
    for ours, theirs in {
        "final_norm": "model.norm",
        "layers.0.post_attn_norm": "model.layers.0.post_attention_layernorm",
        "layers.0.ffn_norm": "model.layers.0.pre_feedforward_layernorm",
        "layers.1.q_norm": "model.layers.1.self_attn.q_norm",
    }.items():
        assert np.array_equal(dequantize(tensors[f"{ours}.weight"]), arrays[f"{theirs}.weight"] + np.float32(1))
    gate = arrays["model.layers.0.mlp.gate_proj.weight"]
    assert np.array_equal(dequantize(tensors["layers.0.gate.weight"]), gate)


def test_gemma3_text_model_has_names_without_prefix(tmp_path: Path) -> None:
    arrays = {name.removeprefix("model."): values for name, values in model_arrays("gemma3").items()}
    assert open_checkpoint(write_model(tmp_path, "Gemma3TextModel", arrays)).spec.architecture == "gemma3"


def test_a_head_beside_a_tied_table_is_left_out_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_model(tmp_path, "LlamaForCausalLM", model_arrays("llama", head=True), tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(folder)
    assert "head.weight" not in checkpoint.tensors
    assert "lm_head.weight is left out" in caplog.text


def test_stored_frequencies_are_left_out(tmp_path: Path) -> None:
    arrays = model_arrays("llama")
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    open_checkpoint(write_model(tmp_path, "LlamaForCausalLM", arrays))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"chat_template.jinja": "from jinja", "tokenizer_config.json": {"chat_template": "other"}}, "from jinja"),
        ({"chat_template.json": {"chat_template": "from json"}}, "from json"),
        ({"tokenizer_config.json": {"chat_template": "from config"}}, "from config"),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "rag"}, {"name": "default", "template": "named"}]}},
            "named",
        ),
        ({"tokenizer_config.json": {}}, None),
    ],
)
def test_chat_template_and_tokenizer_files(tmp_path: Path, files: dict[str, Any], expected: str | None) -> None:
    write_model(tmp_path, "LlamaForCausalLM", model_arrays("llama"))
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.chat_template == expected
    assert checkpoint.tokenizer["tokenizer.json"] == tmp_path / "tokenizer.json"
    assert ("tokenizer_config.json" in checkpoint.tokenizer) == ("tokenizer_config.json" in files)


CONFIG_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported; supported are Llama"),
    ("llama", {"architectures": "null"}, "model class None is not supported"),
    ("llama", {"hidden_size": None}, "config.json: key 'hidden_size' is missing"),
    ("llama", {"hidden_size": 10**400}, "key 'hidden_size' is '1000"),
    (
        "llama",
        {"rope_theta": 10**400},
        "rope_theta' is '100000000000000000000000000000000000000000000000000000000000': it is too large",
    ),
    ("llama", {"num_hidden_layers": 10**9}, "key 'num_hidden_layers' is 1000000000, but there are"),
    ("llama", {"intermediate_size": 12}, "'model.layers.0.mlp.gate_proj.weight' has the shape (16, 8) instead of"),
    ("llama", {"hidden_act": "relu"}, "'hidden_act' is 'relu': supported are silu"),
    ("llama", {"quantization_config": {"bits": 4}}, "'quantization_config.quant_method' is missing"),
    ("llama", {"attention_bias": True}, "has no tensor for layers.0.q.bias"),
    ("llama", {"tie_word_embeddings": False}, "has no tensor for head.weight"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "'rope_scaling.factor' is missing"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "'rope_scaling.mscale' is set"),
    ("llama", {"rope_scaling": "linear"}, "'rope_scaling' is 'linear'"),
    ("llama", {"partial_rotary_factor": 0.3}, "rotates 1 of 4 dimensions"),
    ("gemma3", {"layer_types": ["full_attention"]}, "'layer_types' must say"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 2}, "'layer_types' must say"),
    ("llama", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is set"),
    ("llama", {"num_local_experts": 8}, "'num_local_experts' is set, which is not supported for LlamaForCausalLM"),
    ("gemma2", {"final_logit_softcapping": -1.0}, "'final_logit_softcapping' is '-1.0'"),
    ("gemma2", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is set"),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "long_factor": LONG}},
        "'rope_scaling.short_factor' is 'None': a li",
    ),
    ("phi3", {"rope_scaling": FACTORS | {"type": "su", "long_factor": [1, 2, 3]}}, "a list of 2 numbers is needed"),
    ("phi3", {"rope_scaling": FACTORS | {"type": "su", "long_factor": [1, 0]}}, "finite numbers above 0 are needed"),
    (
        "phi3",
        {"intermediate_size": 12},
        "'model.layers.0.mlp.gate_up_proj.weight' has 32 rows; its parts gate, up have",
    ),
    ("mixtral", {"num_experts_per_tok": 2}, "'num_local_experts' is missing"),
    ("mixtral", MIXTRAL_CONFIG | {"num_experts_per_tok": 4}, "'num_experts_per_tok' is 4 of 3 experts"),
    ("mixtral", MIXTRAL_CONFIG | {"num_local_experts": 4}, "gate.weight' has the shape (3, 8) instead of (4, 8)"),
    ("mixtral", MIXTRAL_CONFIG | {"num_local_experts": 10**6}, "states 1000000 experts, but there are"),
    ("qwen3moe", QWEN3MOE_CONFIG | {"mlp_only_layers": 3}, "'mlp_only_layers' is '3': a list of layers"),
]


@pytest.mark.parametrize(("architecture", "config", "message"), CONFIG_FAULTS)
def test_config_faults(tmp_path: Path, architecture: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_of(tmp_path, architecture, **config)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.0.mlp.experts.0.weight", (2, 2), "tensor 'model.layers.0.mlp.experts.0.weight' is not part"),
        ("vision_tower.weight", (2, 2), "tensor 'vision_tower.weight' is not part"),
        ("norm.weight", (8,), "tensors 'model.norm.weight' and 'norm.weight' are the same part"),
        ("model.layers.0.self_attn.q_norm.weight", (4,), "'model.layers.0.self_attn.q_norm.weight' is not part"),
    ],
)
def test_tensors_that_do_not_belong(tmp_path: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    arrays = model_arrays("llama") | {name: np.ones(shape, np.float32)}
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write_model(tmp_path, "LlamaForCausalLM", arrays))
    assert message in caught.value.message


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: No such file"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        open_checkpoint(tmp_path / "absent.gguf")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not an object"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="give the folder"):
        open_checkpoint(tmp_path / "model.safetensors")
