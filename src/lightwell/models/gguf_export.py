"""A model of any file format as GGUF has it: its keys, and its tensors under GGUF's names, in GGUF's order of rows.

Keys and names are those that llama.cpp reads. What these cannot say is refused, never left out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.gguf_model import gguf_name
from lightwell.checkpoints.gguf_writer import Value
from lightwell.checkpoints.layout import expected_shapes, present_biases
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.spec import Mixture, ModelSpec, Rope, RopeScaling, yarn_attention_factor
from lightwell.checkpoints.tensor import ComputedTensor, Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.models.rope import inverse_frequencies, rotation

Bytes8 = npt.NDArray[np.uint8]

_LLAMAS = ("mistral", "mixtral")  # GGUF calls them so
_WITH_WINDOWS = ("gemma2", "gemma3", "gpt-oss")  # whose windows llama.cpp takes from the file
_SAME = 1e-6  # relative; keys are float32


def gguf_architecture(spec: ModelSpec) -> str:
    return "llama" if spec.architecture in _LLAMAS else spec.architecture


def gguf_keys(checkpoint: Checkpoint) -> dict[str, Value]:
    """The keys that state the model's shape. Raises CheckpointError naming what GGUF has no key for."""
    spec = checkpoint.spec
    for what, unsayable in _unsayable(spec).items():
        if unsayable:
            raise CheckpointError(checkpoint.path, f"cannot be written as GGUF: {what}")
    architecture = gguf_architecture(spec)
    own = {
        **_shape_keys(spec),
        **_attention_keys(spec),
        **_rope_keys(spec),
        **_mixture_keys(architecture, spec.mixture),
    }
    general: dict[str, Value] = {"general.architecture": architecture, "general.name": spec.name}
    return general | {f"{architecture}.{name}": value for name, value in own.items()}


def _unsayable(spec: ModelSpec) -> dict[str, bool]:
    architecture, mixture = gguf_architecture(spec), spec.mixture
    windows = any(window is not None for window in spec.windows)
    return {
        f"llama.cpp does not read the window of a {spec.architecture} model": windows
        and architecture not in _WITH_WINDOWS,
        "it rotates a part of each head, which a llama in GGUF does not": architecture == "llama"
        and spec.rope.dims != spec.head_dim,
        "llama.cpp has no gemma2 without soft caps": architecture == "gemma2"
        and not (spec.attention_soft_cap and spec.final_soft_cap),
        "llama.cpp wants a head of its own in a gpt-oss model": architecture == "gpt-oss" and spec.tied_head,
        "some of its layers have no experts": mixture is not None and bool(mixture.dense_layers),
        "the weights of its experts do not add up to 1": mixture is not None and not mixture.normalized,
    }


def _shape_keys(spec: ModelSpec) -> dict[str, Value]:
    return {
        "block_count": spec.layers,
        "context_length": spec.context_tokens,
        "embedding_length": spec.width,
        "feed_forward_length": spec.ffn_width,
        "vocab_size": spec.vocab,
    }


def _attention_keys(spec: ModelSpec) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
    }
    if windows := {window for window in spec.windows if window is not None}:
        keys["attention.sliding_window"] = max(windows)
    if spec.architecture == "gemma2":
        keys |= {
            "attn_logit_softcapping": spec.attention_soft_cap,
            "final_logit_softcapping": spec.final_soft_cap,
        }
    return keys


def _rope_keys(spec: ModelSpec) -> dict[str, Value]:
    keys: dict[str, Value] = {"rope.dimension_count": spec.rope.dims, "rope.freq_base": spec.rope.theta}
    if spec.local_rope is not None:
        keys["rope.freq_base_swa"] = spec.local_rope.theta
    match spec.rope.scaling:
        case RopeScaling(kind="linear", factor=factor):
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case RopeScaling(kind="yarn") as yarn:
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": yarn.factor,
                "rope.scaling.original_context_length": yarn.original_context,
                "rope.scaling.attn_factor": yarn.attention_factor / yarn_attention_factor(yarn.factor),
                "rope.scaling.yarn_beta_fast": yarn.beta_fast,
                "rope.scaling.yarn_beta_slow": yarn.beta_slow,
            }
        case RopeScaling(kind="longrope") as longrope:
            keys |= {
                "rope.scaling.original_context_length": longrope.original_context,
                "rope.scaling.attn_factor": longrope.attention_factor,
            }
    return keys


def _mixture_keys(architecture: str, mixture: Mixture | None) -> dict[str, Value]:
    if mixture is None:
        return {}
    keys: dict[str, Value] = {"expert_count": mixture.experts, "expert_used_count": mixture.per_token}
    return keys if architecture == "llama" else keys | {"expert_feed_forward_length": mixture.ffn_width}


def gguf_tensors(checkpoint: Checkpoint) -> list[Tensor]:
    """Every tensor as GGUF has it; what must be put together is, each time that its data is asked for."""
    spec = checkpoint.spec
    groups: dict[str, list[Tensor]] = {}
    for name, _ in expected_shapes(spec, present_biases(checkpoint.tensors)):
        tensor = _in_order(name, checkpoint.tensors[name], spec)
        groups.setdefault(gguf_name(name, gguf_architecture(spec)), []).append(tensor)
    return [*(_joined(name, parts) for name, parts in groups.items()), *_rope_factors(spec.rope)]


def _in_order(name: str, tensor: Tensor, spec: ModelSpec) -> Tensor:
    """A Llama's queries and keys in GGUF rotate neighbours, elsewhere the halves of a head: rows change places."""
    if gguf_architecture(spec) != "llama" or spec.rope.interleaved or name.split(".")[-2] not in ("q", "k"):
        return tensor

    def interleaved() -> Bytes8:
        rows = tensor.data.reshape(-1, 2, spec.head_dim // 2, tensor.nbytes // tensor.shape[0])
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    return ComputedTensor(tensor.name, tensor.format, tensor.shape, interleaved)


def _joined(name: str, parts: Sequence[Tensor]) -> Tensor:
    """One tensor of several parts: experts are stacked, others lie one below the other."""
    first = parts[0]
    stacked = "_exps." in name
    rows = sum(part.shape[0] for part in parts)
    shape = (len(parts), *first.shape) if stacked else (rows, *first.shape[1:])
    if len({part.format for part in parts}) > 1:
        return ComputedTensor(name, Format.F32, shape, lambda: np.concatenate([_floats(part) for part in parts]))
    if len(parts) > 1:
        return ComputedTensor(name, first.format, shape, lambda: np.concatenate([part.data for part in parts]))
    return ComputedTensor(name, first.format, shape, lambda: first.data)


def _floats(tensor: Tensor) -> Bytes8:
    return dequantize(tensor).reshape(-1).view(np.uint8)


def _rope_factors(rope: Rope) -> Iterator[Tensor]:
    """What the frequencies are divided by, where GGUF has a tensor for it: llama3's, and both sets of longrope's."""
    match rope.scaling:
        case RopeScaling(kind="llama3"):
            plain = inverse_frequencies(Rope(rope.theta, rope.dims, rope.interleaved))
            yield _vector("rope_freqs.weight", plain / inverse_frequencies(rope))
        case RopeScaling(kind="longrope") as longrope:
            yield _vector("rope_factors_long.weight", longrope.factors)
            yield _vector("rope_factors_short.weight", longrope.short_factors)


def _vector(name: str, values: npt.ArrayLike) -> Tensor:
    floats = np.asarray(values, np.float32)
    return Tensor(name, Format.F32, floats.shape, floats.view(np.uint8))


def differences(wanted: ModelSpec, found: ModelSpec) -> list[str]:
    """The fields in which two models differ that should compute the same, whatever files they come from."""
    skipped = {"name", "architecture", "attention_scale"}
    names = [field.name for field in fields(ModelSpec) if field.name not in skipped]
    unequal = [name for name in [*names, "query_scale"] if not _same(getattr(wanted, name), getattr(found, name))]
    if unequal:
        return unequal
    contexts = (1, wanted.context_tokens)  # longrope's two sets
    turned = all(np.allclose(_turns(wanted, n), _turns(found, n), rtol=0, atol=_SAME) for n in contexts)
    return [] if turned else ["rope"]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Rope) and isinstance(b, Rope):
        return a.dims == b.dims and math.isclose(a.theta, b.theta, rel_tol=_SAME)
    return math.isclose(a, b, rel_tol=_SAME) if isinstance(a, float) and isinstance(b, float) else a == b


def _turns(spec: ModelSpec, context: int) -> npt.NDArray[np.float32]:
    """Cosines and sines of one token's turn, of every rope."""
    ropes = [rope for rope in (spec.rope, spec.local_rope) if rope is not None]
    return np.concatenate([np.concatenate(rotation(rope.within(context), [1])) for rope in ropes], axis=-1)
