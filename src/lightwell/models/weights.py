"""The tensors of a checkpoint, arranged as the model functions read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.spec import Mixture
from lightwell.checkpoints.tensor import Tensor


@dataclass(frozen=True)
class Linear:
    """A linear layer: weight (outputs, inputs) and, in some families, a bias (outputs)."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class FeedForward:
    """A gated network, or one expert of a mixture."""

    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Experts:
    """A mixture (see spec.Mixture): the router, of one row an expert, and the experts."""

    router: Linear
    each: tuple[FeedForward, ...]
    per_token: int
    normalized: bool


@dataclass(frozen=True)
class Layer:
    attn_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: Tensor
    ffn: FeedForward | Experts
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    post_attn_norm: Tensor | None = None
    post_ffn_norm: Tensor | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    embed: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Linear


def arrange(checkpoint: Checkpoint) -> Weights:
    """Name every tensor's place in the model; the head is the token table where the model ties them.

    That the checkpoint has the tensors of its spec, and no others, was checked when it was opened.
    """
    spec, tensors = checkpoint.spec, checkpoint.tensors
    embed = tensors["embed.weight"]
    return Weights(
        embed=embed,
        layers=tuple(_layer(tensors, f"layers.{i}", spec.mixture_of(i)) for i in range(spec.layers)),
        final_norm=tensors["final_norm.weight"],
        head=Linear(embed) if spec.tied_head else _linear(tensors, "head"),
    )


def _layer(tensors: Mapping[str, Tensor], prefix: str, mixture: Mixture | None) -> Layer:
    vectors = ("attn_norm", "ffn_norm", "q_norm", "k_norm", "post_attn_norm", "post_ffn_norm", "sinks")
    parts: dict[str, Any] = {name: _linear(tensors, f"{prefix}.{name}") for name in "qkvo"}
    parts |= {name: tensors[key] for name in vectors if (key := f"{prefix}.{name}.weight") in tensors}
    return Layer(ffn=_experts(tensors, prefix, mixture) if mixture else _feed_forward(tensors, prefix), **parts)


def _experts(tensors: Mapping[str, Tensor], prefix: str, mixture: Mixture) -> Experts:
    each = tuple(_feed_forward(tensors, f"{prefix}.experts.{i}") for i in range(mixture.experts))
    return Experts(_linear(tensors, f"{prefix}.router"), each, mixture.per_token, mixture.normalized)


def _feed_forward(tensors: Mapping[str, Tensor], prefix: str) -> FeedForward:
    return FeedForward(*(_linear(tensors, f"{prefix}.{name}") for name in ("gate", "up", "down")))


def _linear(tensors: Mapping[str, Tensor], name: str) -> Linear:
    return Linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
