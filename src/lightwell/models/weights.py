"""The tensors of a checkpoint, arranged as the model functions read them."""

from dataclasses import dataclass
from typing import Any

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.tensor import Tensor


@dataclass(frozen=True)
class Linear:
    """A linear layer: weight (outputs, inputs) and, in some families, a bias (outputs)."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    attn_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    post_attn_norm: Tensor | None = None
    post_ffn_norm: Tensor | None = None


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
    tensors = checkpoint.tensors

    def linear(name: str) -> Linear:
        return Linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def layer(prefix: str) -> Layer:
        linears = ("q", "k", "v", "o", "gate", "up", "down")
        norms = ("attn_norm", "ffn_norm", "q_norm", "k_norm", "post_attn_norm", "post_ffn_norm")
        parts: dict[str, Any] = {name: linear(f"{prefix}.{name}") for name in linears}
        parts |= {name: tensors[key] for name in norms if (key := f"{prefix}.{name}.weight") in tensors}
        return Layer(**parts)

    embed = tensors["embed.weight"]
    return Weights(
        embed=embed,
        layers=tuple(layer(f"layers.{i}") for i in range(checkpoint.spec.layers)),
        final_norm=tensors["final_norm.weight"],
        head=Linear(embed) if checkpoint.spec.tied_head else linear("head"),
    )
