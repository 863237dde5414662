"""Ops in NumPy float32: one obvious implementation of each, for one step. What the other runtimes must equal."""

from collections.abc import Mapping

import numpy as np

from lightwell.checkpoints.spec import Activation, Rope
from lightwell.checkpoints.tensor import Tensor
from lightwell.models.rope import rotation
from lightwell.models.weights import Experts, Linear
from lightwell.runtimes.base import Floats, StepInput
from lightwell.runtimes.reference.attention import AttentionRule, attend, soft_capped
from lightwell.runtimes.reference.cache import LayerCache


class ReferenceOps:
    """``values`` are the model's tensors in float32 by their name in the file; ``caches`` are one a layer."""

    def __init__(self, step: StepInput, values: Mapping[str, Floats], caches: list[LayerCache]) -> None:
        self._step, self._values, self._caches = step, values, caches
        self.hidden: Floats | None = None  # of the step's hidden rows, once its logits are made

    def embed(self, table: Tensor, scale: float) -> Floats:
        rows: Floats = self._values[table.name][self._step.tokens] * np.float32(scale)
        return rows

    def rms_norm(self, x: Floats, weight: Tensor, eps: float) -> Floats:
        """Zhang & Sennrich, arXiv:1910.07467."""
        runs = x.reshape(len(x), -1, weight.columns)
        mean_square = np.mean(runs * runs, axis=-1, keepdims=True)
        normed: Floats = runs / np.sqrt(mean_square + np.float32(eps)) * self._values[weight.name]
        return normed.reshape(x.shape)

    def linear(self, x: Floats, *layers: Linear) -> tuple[Floats, ...]:
        return tuple(self._linear(x, layer) for layer in layers)

    def _linear(self, x: Floats, layer: Linear) -> Floats:
        y: Floats = x @ self._values[layer.weight.name].T
        return y if layer.bias is None else y + self._values[layer.bias.name]

    def rotary(self, x: Floats, rope: Rope, head_dim: int) -> Floats:
        cos, sin = (table[:, None, :] for table in rotation(rope, self._step.positions))  # the same for every head
        out = x.reshape(len(x), -1, head_dim).copy()
        turning = out[..., : rope.dims]
        half = rope.dims // 2
        first, second = (
            (turning[..., 0::2], turning[..., 1::2]) if rope.interleaved else (turning[..., :half], turning[..., half:])
        )
        rotated_first, rotated_second = first * cos - second * sin, first * sin + second * cos
        first[...], second[...] = rotated_first, rotated_second
        return out.reshape(x.shape)

    def attention(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Floats:
        rule = AttentionRule(scale, window, soft_cap, None if sinks is None else self._values[sinks.name])
        return attend(q, k, v, self._step, self._caches[layer], rule)

    def gated(self, gate: Floats, up: Floats, activation: Activation) -> Floats:
        """Shazeer, arXiv:2002.05202."""
        match activation:
            case "silu":
                return _silu(gate) * up
            case "gelu_tanh":
                return _gelu_tanh(gate) * up
            case "clamped_swiglu":
                return _clamped_swiglu(gate, up)

    def experts(self, x: Floats, experts: Experts, activation: Activation) -> Floats:
        scores = self._linear(x, experts.router)
        chosen = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, : experts.per_token], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        counted = np.take_along_axis(weights, chosen, axis=1) if experts.normalized else weights
        weights /= counted.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for index in np.unique(chosen):
            rows = (chosen == index).any(axis=1)
            gate, up = self.linear(x[rows], experts.each[index].gate, experts.each[index].up)
            down = self._linear(self.gated(gate, up, activation), experts.each[index].down)
            out[rows] += weights[rows, index, None] * down
        return out

    def add(self, a: Floats, b: Floats) -> Floats:
        return a + b

    def logits(self, x: Floats, head: Linear, soft_cap: float = 0.0) -> Floats:
        if self._step.hidden_rows is not None:
            self.hidden = x[self._step.hidden_rows]
        return soft_capped(self._linear(x[self._step.logit_rows], head), soft_cap)


def _silu(x: Floats) -> Floats:
    half = np.float32(0.5)
    y: Floats = x * (half * np.tanh(half * x) + half)  # x * sigmoid(x), in a form that cannot overflow
    return y


def _gelu_tanh(x: Floats) -> Floats:
    """The tanh approximation of GELU (Hendrycks & Gimpel, arXiv:1606.08415)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def _clamped_swiglu(gate: Floats, up: Floats) -> Floats:
    """gpt-oss': a sigmoid steeper than silu's, both sides clamped, and one more of ``up`` (arXiv:2508.10925)."""
    limit, steepness = np.float32(7), np.float32(1.702)
    gate = np.minimum(gate, limit)
    y: Floats = _silu(steepness * gate) / steepness * (np.clip(up, -limit, limit) + 1)
    return y
