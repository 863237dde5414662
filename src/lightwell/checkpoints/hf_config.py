"""A Hugging Face config.json read as a ModelSpec.

Fields and their defaults are those of the transformers library for the same model classes.
"""

import math

from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.spec import (
    Activation,
    Mixture,
    ModelSpec,
    Rope,
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)
from lightwell.errors import CheckpointError
from lightwell.units import Tokens

_CLASSES = {  # model class -> the architecture's name in GGUF and here
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "GptOssForCausalLM": "gpt-oss",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3TextModel": "gemma3",
}
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_GEMMA = ("gemma2", "gemma3")
_WITH_QK_NORM = ("qwen3", "qwen3moe", "gemma3")
_WITH_EXPERTS = ("mixtral", "qwen3moe", "gpt-oss")
# Where a class has defaults of its own: instead of width / heads, 1e-6 and 10,000.
_HEAD_DIMS = {"qwen3": 128, "gpt-oss": 64, "gemma2": 256, "gemma3": 256}
_NORM_EPS = {"phi3": 1e-5, "mixtral": 1e-5, "gpt-oss": 1e-5}
_ROPE_THETAS = {"mixtral": 1_000_000.0, "gemma3": 1_000_000.0, "gpt-oss": 150_000.0}
_DEFAULT_WINDOW: Tokens = 4096  # of the Mistral and Gemma classes
_GPT_OSS_WINDOW: Tokens = 128
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}  # of so many layers the last sees everything, others a window
_PHI3_ORIGINAL_CONTEXT: Tokens = 4096
_WINDOWED, _FULL = "sliding_attention", "full_attention"
# Fields that change the arithmetic or the tensors, and the architectures that know them: others refuse them.
_REFUSED: dict[str, tuple[str, ...]] = {
    "attn_logit_softcapping": _GEMMA,
    "final_logit_softcapping": _GEMMA,
    "use_bidirectional_attention": (),
    "num_local_experts": _WITH_EXPERTS,
    "num_experts": _WITH_EXPERTS,
}


def read_architecture(config: Fields) -> str:
    """Which of the supported architectures the folder holds."""
    classes = config.raw("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(name, str) or name not in _CLASSES:
        raise CheckpointError(
            config.path, f"model class {name!r} is not supported; supported are {', '.join(_CLASSES)}"
        )
    architecture = _CLASSES[name]
    for field, known_to in _REFUSED.items():
        if config.raw(field) and architecture not in known_to:
            raise CheckpointError(config.path, f"{config.label(field)} is set, which is not supported for {name}")
    return architecture


def required_biases(architecture: str, config: Fields) -> frozenset[str]:
    """The linear layers that must have a bias; a Qwen2's queries, keys and values do without saying so."""
    required = frozenset("qkv") if architecture == "qwen2" else frozenset()
    if architecture == "gpt-oss":
        required |= {"router", "gate", "up", "down"}
    if config.get("attention_bias", bool, architecture == "gpt-oss"):
        required |= frozenset("qkvo")
    if config.get("mlp_bias", bool, False):
        required |= {"gate", "up", "down"}
    return required


def read_spec(architecture: str, config: Fields, layers: int, *, tied: bool) -> ModelSpec:
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.count("head_dim", _HEAD_DIMS.get(architecture, width // heads))
    gemma = architecture in _GEMMA
    theta = _ROPE_THETAS.get(architecture, 10_000.0)
    return ModelSpec(
        name=config.get("_name_or_path", str, "") or config.path.parent.name,
        architecture=architecture,
        family="gemma" if gemma else "llama",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn_width=config.count("intermediate_size"),
        vocab=config.count("vocab_size"),
        context_tokens=config.count("max_position_embeddings"),
        norm_eps=config.positive("rms_norm_eps", _NORM_EPS.get(architecture, 1e-6)),
        rope=_rope(architecture, config, _FULL, head_dim, theta),
        activation=_clamped_swiglu(config) if architecture == "gpt-oss" else _activation(config, gemma),
        tied_head=tied,
        qk_norm=architecture in _WITH_QK_NORM,
        attention_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5 if gemma else 0.0,
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        local_rope=_rope(architecture, config, _WINDOWED, head_dim, 10_000.0) if architecture == "gemma3" else None,
        windows=_windows(architecture, config, layers),
        post_norms=gemma,
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping", 50.0 if architecture == "gemma2" else 0.0),
        final_soft_cap=_soft_cap(config, "final_logit_softcapping", 30.0 if architecture == "gemma2" else 0.0),
        mixture=_mixture(architecture, config, layers) if architecture in _WITH_EXPERTS else None,
        sinks=architecture == "gpt-oss",
    )


def _clamped_swiglu(config: Fields) -> Activation:
    """gpt-oss', with the limit and the steepness that all its models have."""
    for field, supported in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if (value := config.positive(field, supported)) != supported:
            raise CheckpointError(config.path, f"{config.label(field)} is {value}: supported is {supported}")
    return "clamped_swiglu"


def _soft_cap(config: Fields, name: str, default: float) -> float:
    """0 for none: null says so, a missing field leaves it to the class."""
    value = default if name not in config.values else config.raw(name) or 0.0
    return config.positive(name) if value and name in config.values else value


def _mixture(architecture: str, config: Fields, layers: int) -> Mixture:
    count = "num_local_experts" if config.raw("num_experts") is None else "num_experts"
    experts, per_token = config.count(count), config.count("num_experts_per_tok")
    if per_token > experts:
        raise CheckpointError(config.path, f"{config.label('num_experts_per_tok')} is {per_token} of {experts} experts")
    if architecture in ("mixtral", "gpt-oss"):
        return Mixture(experts, per_token, config.count("intermediate_size"), normalized=True)
    every, dense = config.count("decoder_sparse_step", 1), config.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise config.unfit("mlp_only_layers", "a list of layers is needed")
    return Mixture(
        experts,
        per_token,
        config.count("moe_intermediate_size"),
        normalized=config.get("norm_topk_prob", bool, False),
        dense_layers=frozenset(layer for layer in range(layers) if layer in dense or (layer + 1) % every),
    )


def _activation(config: Fields, gemma: bool) -> Activation:
    field, default = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    name = config.get(field, str, default)
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            config.path, f"{config.label(field)} is {name!r}: supported are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _windows(architecture: str, config: Fields, layers: int) -> tuple[Tokens | None, ...]:
    """How many tokens each layer sees back; empty when all layers see everything."""
    if architecture == "mistral":
        window = _DEFAULT_WINDOW if "sliding_window" not in config.values else config.get("sliding_window", int, 0)
        return (window,) * layers if window else ()
    if architecture in ("phi3", "mixtral"):
        return (config.count("sliding_window"),) * layers if config.raw("sliding_window") else ()
    if architecture in _FULL_EVERY:
        every = config.count("sliding_window_pattern", _FULL_EVERY[architecture])
        pattern = [(layer + 1) % every != 0 for layer in range(layers)]
        default = _GPT_OSS_WINDOW if architecture == "gpt-oss" else _DEFAULT_WINDOW
        return _windows_by_layer(config, config.count("sliding_window", default), pattern)
    if architecture.startswith("qwen") and config.get("use_sliding_window", bool, False):
        first = 0 if architecture == "qwen3moe" else config.get("max_window_layers", int)
        return _windows_by_layer(config, config.count("sliding_window"), [layer >= first for layer in range(layers)])
    return ()


def _windows_by_layer(config: Fields, window: Tokens, pattern: list[bool]) -> tuple[Tokens | None, ...]:
    """``layer_types`` says which layers have the window; older files leave it to a pattern."""
    kinds = config.raw("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != len(pattern) or not set(kinds) <= {_WINDOWED, _FULL}:
            raise CheckpointError(
                config.path, f"{config.label('layer_types')} must say {_WINDOWED!r} or {_FULL!r} for each layer"
            )
        pattern = [kind == _WINDOWED for kind in kinds]
    return tuple(window if windowed else None for windowed in pattern)


def _rope_fields(config: Fields, layer_type: str) -> Fields:
    """What the configuration says about the rotation of one type of layers.

    transformers 5 writes ``rope_parameters``, by layer type where these differ; before, ``rope_scaling`` stood beside
    ``rope_theta``, and layers with a window had ``rope_local_base_freq`` and no scaling.
    """
    parameters = config.group("rope_parameters")
    if parameters.values:
        return parameters.group(layer_type) if layer_type in parameters.values else parameters
    if layer_type == _WINDOWED:
        return Fields(config.path, {"rope_theta": config.raw("rope_local_base_freq")})
    scaling = config.group("rope_scaling")
    return Fields(config.path, {"rope_theta": config.raw("rope_theta"), **scaling.values}, scaling.prefix)


def _rope(architecture: str, config: Fields, layer_type: str, head_dim: int, default_theta: float) -> Rope:
    fields = _rope_fields(config, layer_type)
    part = config.positive("partial_rotary_factor", fields.positive("partial_rotary_factor", 1.0))
    dims = int(head_dim * part)
    if dims % 2 or not 0 < dims <= head_dim:
        raise CheckpointError(config.path, f"rotates {dims} of {head_dim} dimensions: an even number is needed")
    theta = fields.positive("rope_theta", default_theta)
    kind = fields.get("rope_type", str, fields.get("type", str, "default"))
    if architecture == "gpt-oss" and kind != "yarn":  # its class has a default of its own, which no file leaves unsaid
        raise CheckpointError(config.path, f"rope scaling is {kind!r}: yarn is what a {architecture} model has")
    if kind in ("su", "longrope") or (architecture == "phi3" and kind == "yarn"):  # older files' names for it
        return Rope(theta, dims, interleaved=False, scaling=_longrope(config, fields, dims))
    return Rope(theta, dims, interleaved=False, scaling=_scaling(kind, fields, config.count("max_position_embeddings")))


def _longrope(config: Fields, fields: Fields, dims: int) -> RopeScaling:
    original = config.count(
        "original_max_position_embeddings", fields.count("original_max_position_embeddings", _PHI3_ORIGINAL_CONTEXT)
    )
    factor = fields.positive("factor", config.count("max_position_embeddings") / original)
    return RopeScaling(
        "longrope",
        factors=_factors(fields, "long_factor", dims // 2),
        short_factors=_factors(fields, "short_factor", dims // 2),
        original_context=original,
        attention_factor=fields.positive("attention_factor", longrope_attention_factor(factor, original)),
    )


def _factors(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    values = fields.raw(name)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(x, int | float) for x in values):
        raise fields.unfit(name, f"a list of {count} numbers is needed")
    if not all(math.isfinite(x) and x > 0 for x in values):
        raise fields.unfit(name, "finite numbers above 0 are needed")
    return tuple(map(float, values))


def _scaling(kind: str, fields: Fields, context: Tokens) -> RopeScaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", fields.positive("factor"))
        case "llama3":
            return RopeScaling(
                "llama3",
                fields.positive("factor"),
                low_freq_factor=fields.positive("low_freq_factor"),
                high_freq_factor=fields.positive("high_freq_factor"),
                original_context=fields.count("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(fields, context)
    raise CheckpointError(
        fields.path, f"rope scaling {kind!r} is not supported: supported are default, linear, llama3, yarn and longrope"
    )


def _yarn(fields: Fields, context: Tokens) -> RopeScaling:
    for name in ("mscale", "mscale_all_dim"):
        if fields.raw(name) is not None:
            raise CheckpointError(fields.path, f"{fields.label(name)} is set, which is not supported")
    factor = fields.positive("factor")
    return RopeScaling(
        "yarn",
        factor,
        original_context=fields.count("original_max_position_embeddings", context),
        beta_fast=fields.positive("beta_fast", 32.0),
        beta_slow=fields.positive("beta_slow", 1.0),
        attention_factor=fields.positive("attention_factor", yarn_attention_factor(factor)),
        truncate=fields.get("truncate", bool, True),
    )
