"""A GGUF file read as a model: metadata to ModelSpec, tensor names to ours.

Keys and their defaults are those of llama.cpp for the same architectures.
"""

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.fused import split_fused
from lightwell.checkpoints.gguf import read_gguf
from lightwell.checkpoints.layout import LINEARS, check_layout, layer_count, rename
from lightwell.checkpoints.spec import Activation, Family, Mixture, ModelSpec, Rope, RopeScaling, yarn_attention_factor
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import CheckpointError
from lightwell.units import Tokens

log = logging.getLogger(__name__)

FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "qwen3moe": "llama",
    "phi3": "llama",
    "gpt-oss": "llama",
    "gemma2": "gemma",
    "gemma3": "gemma",
}
_INTERLEAVED = ("llama", "mistral")  # the converter permutes their query and key rows to rotate neighbours
_WITH_QK_NORM = ("qwen3", "qwen3moe", "gemma3")
_WITH_EXPERTS = ("llama", "qwen3moe", "gpt-oss")  # Mixtral is a llama with experts
_REQUIRED_BIASES = {"qwen2": frozenset("qkv"), "gpt-oss": LINEARS}
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}  # llama.cpp tells sizes by layers; these scale by width / heads
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}  # of so many layers the last sees everything, others a window
_GEMMA2_WINDOW: Tokens = 4096
_ACTIVATIONS: dict[str, Activation] = {"gemma2": "gelu_tanh", "gemma3": "gelu_tanh", "gpt-oss": "clamped_swiglu"}

_ROPE_FACTORS = "rope_freqs.weight"
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_ALL_FACTORS = (_ROPE_FACTORS, _LONG_FACTORS, _SHORT_FACTORS)
_TOP_NAMES = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "final_norm.weight",
    "output.weight": "head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "post_attn_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "post_ffn_norm",
    "ffn_gate_inp": "router",
    "ffn_gate_exps": "experts.gate",
    "ffn_up_exps": "experts.up",
    "ffn_down_exps": "experts.down",
}
_OWN_NAMES = {
    "phi3": {"attn_qkv": "qkv", "ffn_up": "gate_up"},
    "gpt-oss": {"post_attention_norm": "ffn_norm", "attn_sinks": "sinks"},
}
_FUSED_IN = {"phi3": {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}}
_LAYER_TENSOR = re.compile(r"blk\.(0|[1-9][0-9]*)\.(\w+)\.(weight|bias)")

_SOFTMAX = 1  # llama.cpp's number for the gating function of a router

# Keys below "<architecture>." that change the arithmetic in ways that no supported family knows, and the values at
# which they change nothing. What a family does know, it reads, and then it is not refused.
_REFUSED_UNLESS: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "expert_gating_func": (_SOFTMAX,),
    "leading_dense_block_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
# Keys that say nothing which the tensors or other keys do not.
_INFORMATIVE = {"tensor_data_layout", "rope.scaling.finetuned", "expert_used_count"}


def open_gguf(path: Path) -> Checkpoint:
    """Raises CheckpointError naming the file and the key or tensor that is missing, damaged or not supported."""
    file = read_gguf(path)
    general = Fields(path, file.metadata)
    architecture = _architecture(general)
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    keys = Fields(path, own, prefix)
    spec = _spec(architecture, general, keys, file.tensors)
    _report_unread(keys)
    weights = {name: tensor for name, tensor in file.tensors.items() if name not in _ALL_FACTORS}
    tensors = split_fused(path, spec, rename(path, weights, lambda name: our_name(name, architecture)))
    check_layout(path, spec, tensors, _REQUIRED_BIASES.get(architecture, frozenset()))
    tokenizer = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    template = general.get("tokenizer.chat_template", str, "") or None
    return Checkpoint(path, spec, tensors, tokenizer, template, maps=(file.map,))


def _architecture(general: Fields) -> str:
    architecture = general.get("general.architecture", str)
    if architecture not in FAMILIES:
        raise CheckpointError(
            general.path, f"architecture {architecture!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return architecture


def our_name(name: str, architecture: str) -> str | None:
    """``blk.3.attn_q.weight`` -> ``layers.3.q.weight``; None for a name that is not known."""
    if match := _LAYER_TENSOR.fullmatch(name):
        part = (_LAYER_NAMES | _OWN_NAMES.get(architecture, {})).get(match[2])
        return part and f"layers.{match[1]}.{part}.{match[3]}"
    return _TOP_NAMES.get(name)


def gguf_name(name: str, architecture: str) -> str:
    """``layers.3.q.weight`` -> ``blk.3.attn_q.weight``: the tensor that has this part of the model, alone, fused with
    others, or, for experts, stacked. Raises KeyError for a part that GGUF has no name for."""
    if not name.startswith("layers."):
        return _inverse(_TOP_NAMES)[name]
    _, layer, *expert, part, kind = name.split(".")
    part = _FUSED_IN.get(architecture, {}).get(part, part)
    theirs = _inverse(_LAYER_NAMES) | _inverse(_OWN_NAMES.get(architecture, {}))
    return f"blk.{layer}.{theirs[f'experts.{part}' if expert else part]}.{kind}"


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in names.items()}


def _report_unread(keys: Fields) -> None:
    """Refuse keys that would change the arithmetic; log the ones that nobody here knows."""
    for name, value in keys.values.items():
        if name not in keys.read and name in _REFUSED_UNLESS and value not in _REFUSED_UNLESS[name]:
            raise CheckpointError(keys.path, f"{keys.label(name)} is {value}, which is not supported here")
        if name not in keys.read | _INFORMATIVE | _REFUSED_UNLESS.keys():
            log.warning("%s: %s is not known here and has no effect", keys.path, keys.label(name))


def _spec(architecture: str, general: Fields, keys: Fields, tensors: Mapping[str, Tensor]) -> ModelSpec:
    width, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    layers = layer_count(keys, "block_count", tensors)
    head_dim = _head_dim(keys, width, heads)
    gemma = FAMILIES[architecture] == "gemma"
    rope = _rope(architecture, keys, head_dim, tensors)
    return ModelSpec(
        name=general.get("general.name", str, keys.path.stem),
        architecture=architecture,
        family=FAMILIES[architecture],
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_width=keys.count("feed_forward_length"),
        vocab=_vocab(general, keys),
        context_tokens=keys.count("context_length"),
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope=rope,
        activation=_ACTIVATIONS.get(architecture, "silu"),
        tied_head="output.weight" not in tensors,
        qk_norm=architecture in _WITH_QK_NORM,
        attention_scale=keys.get("attention.scale", float, _default_scale(architecture, width, heads, layers)),
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        local_rope=_local_rope(keys, rope) if architecture == "gemma3" else None,
        windows=_windows(architecture, keys, layers),
        post_norms=gemma,
        attention_soft_cap=_soft_cap(keys, "attn_logit_softcapping", 50.0) if architecture == "gemma2" else 0.0,
        final_soft_cap=_soft_cap(keys, "final_logit_softcapping", 30.0) if architecture == "gemma2" else 0.0,
        mixture=_mixture(architecture, keys) if architecture in _WITH_EXPERTS else None,
        sinks=architecture == "gpt-oss",
    )


def _head_dim(keys: Fields, width: int, heads: int) -> int:
    if keys.raw("attention.key_length") is None and width % heads:
        raise CheckpointError(
            keys.path, f"{keys.label('attention.key_length')} is missing and {heads} heads do not divide {width}"
        )
    head_dim = keys.count("attention.key_length", width // heads)
    values = keys.count("attention.value_length", head_dim)
    if values != head_dim:
        raise CheckpointError(
            keys.path,
            f"{keys.label('attention.value_length')} is {values} and keys are {head_dim} long: both must agree",
        )
    return head_dim


def _vocab(general: Fields, keys: Fields) -> int:
    tokens = general.raw("tokenizer.ggml.tokens")
    return keys.count("vocab_size", len(tokens) if isinstance(tokens, list) else None)


def _default_scale(architecture: str, width: int, heads: int, layers: int) -> float:
    """What multiplies query-key products; 0, as in ModelSpec, for 1/sqrt(head_dim). Only Gemma's 27B differ."""
    return 1 / math.sqrt(width / heads) if layers == _GEMMA_27B_LAYERS.get(architecture) else 0.0


def _windows(architecture: str, keys: Fields, layers: int) -> tuple[Tokens | None, ...]:
    if architecture not in _FULL_EVERY:
        return _uniform_window(keys, layers)
    window = keys.count("attention.sliding_window", _GEMMA2_WINDOW if architecture == "gemma2" else None)
    every = keys.count("attention.sliding_window_pattern", _FULL_EVERY[architecture])
    return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


def _soft_cap(keys: Fields, name: str, default: float) -> float:
    """0 where the file says that there is none."""
    return keys.positive(name, default) if keys.raw(name) != 0 else 0.0


def _mixture(architecture: str, keys: Fields) -> Mixture | None:
    if not keys.get("expert_count", int, 0):
        return None
    width = "feed_forward_length" if architecture == "llama" else "expert_feed_forward_length"
    experts, per_token = keys.count("expert_count"), keys.count("expert_used_count")
    if per_token > experts:
        raise CheckpointError(keys.path, f"{keys.label('expert_used_count')} is {per_token} of {experts} experts")
    return Mixture(experts, per_token, keys.count(width), keys.get("expert_weights_norm", bool, True))


def _uniform_window(keys: Fields, layers: int) -> tuple[Tokens | None, ...]:
    window = keys.get("attention.sliding_window", int, 0)
    return (window,) * layers if window > 0 else ()


def _local_rope(keys: Fields, rope: Rope) -> Rope:
    return Rope(keys.positive("rope.freq_base_swa", 10_000.0), rope.dims, interleaved=False)


def _rope(architecture: str, keys: Fields, head_dim: int, tensors: Mapping[str, Tensor]) -> Rope:
    dims = keys.count("rope.dimension_count", head_dim)
    if dims % 2 or dims > head_dim:
        raise CheckpointError(
            keys.path, f"{keys.label('rope.dimension_count')} is {dims}: an even number up to {head_dim} is needed"
        )
    theta = keys.positive("rope.freq_base", 1_000_000.0 if architecture == "gemma3" else 10_000.0)
    found = [name for name in _ALL_FACTORS if name in tensors]
    scaling = _scaling(keys, with_factors=bool(found))
    if architecture == "gpt-oss" and scaling is not None:
        scaling = replace(scaling, truncate=False)  # as the model is defined; llama.cpp rounds to whole pairs
    if found:
        if scaling is not None:
            raise CheckpointError(keys.path, f"has both {scaling.kind} rope scaling and a tensor {found[0]!r}")
        factors = {name: _factors(keys.path, tensors[name], dims) for name in found}
        scaling = _scaling_by_factors(keys, factors)
    return Rope(theta, dims, architecture in _INTERLEAVED, scaling)


def _factors(path: Path, factors: Tensor, dims: int) -> tuple[float, ...]:
    if factors.shape != (dims // 2,):
        raise CheckpointError(path, f"tensor {factors.name!r} has the shape {factors.shape} instead of {(dims // 2,)}")
    from lightwell.checkpoints.quantized import dequantize  # which few models need here

    return tuple(dequantize(factors).tolist())


def _scaling_by_factors(keys: Fields, factors: Mapping[str, tuple[float, ...]]) -> RopeScaling:
    """From one tensor of factors, or longrope's two."""
    if _ROPE_FACTORS in factors:
        return RopeScaling("factors", factors=factors[_ROPE_FACTORS])
    if len(factors) != 2:
        raise CheckpointError(keys.path, f"has {', '.join(factors)} without its counterpart")
    return RopeScaling(
        "longrope",
        factors=factors[_LONG_FACTORS],
        short_factors=factors[_SHORT_FACTORS],
        original_context=keys.count("rope.scaling.original_context_length"),
        attention_factor=keys.positive("rope.scaling.attn_factor", 1.0),
    )


def _scaling(keys: Fields, *, with_factors: bool) -> RopeScaling | None:
    legacy = keys.positive("rope.scale_linear", 1.0)  # from before rope.scaling.* existed
    kind = keys.get("rope.scaling.type", str, "linear" if legacy != 1.0 else "none")
    factor = keys.positive("rope.scaling.factor", legacy)
    match kind:
        case "none":
            return None
        case "longrope" if with_factors:
            return None
        case "linear":
            return RopeScaling("linear", factor)
        case "yarn":
            return RopeScaling(
                "yarn",
                factor,
                original_context=keys.count("rope.scaling.original_context_length"),
                beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=keys.positive("rope.scaling.attn_factor", 1.0) * yarn_attention_factor(factor),
            )
    raise CheckpointError(
        keys.path,
        f"{keys.label('rope.scaling.type')} is {kind!r}: supported are none, linear, yarn, longrope with factors",
    )
