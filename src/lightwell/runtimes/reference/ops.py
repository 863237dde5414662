"""Ops in NumPy float32: one obvious implementation of each, for one step. What the other runtimes must equal."""

from collections.abc import Mapping

import numpy as np

from lightwell.checkpoints.spec import Activation, Rope
from lightwell.checkpoints.tensor import Tensor
from lightwell.models.rope import rotation
from lightwell.models.weights import Linear
from lightwell.runtimes.base import Floats, StepInput
from lightwell.runtimes.reference.attention import attend
from lightwell.runtimes.reference.cache import LayerCache


class ReferenceOps:
    """``values`` are the model's tensors in float32 by their name in the file; ``caches`` are one a layer."""

    def __init__(self, step: StepInput, values: Mapping[str, Floats], caches: list[LayerCache]) -> None:
        self._step, self._values, self._caches = step, values, caches

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

    def attention(self, q: Floats, k: Floats, v: Floats, layer: int, scale: float, window: int | None) -> Floats:
        return attend(q, k, v, self._step, self._caches[layer], scale, window)

    def gated(self, gate: Floats, up: Floats, activation: Activation) -> Floats:
        """Shazeer, arXiv:2002.05202."""
        return (_silu(gate) if activation == "silu" else _gelu_tanh(gate)) * up

    def add(self, a: Floats, b: Floats) -> Floats:
        return a + b

    def logits(self, x: Floats, head: Linear) -> Floats:
        return self._linear(x[self._step.logit_rows], head)


def _silu(x: Floats) -> Floats:
    half = np.float32(0.5)
    y: Floats = x * (half * np.tanh(half * x) + half)  # x * sigmoid(x), in a form that cannot overflow
    return y


def _gelu_tanh(x: Floats) -> Floats:
    """The tanh approximation of GELU (Hendrycks & Gimpel, arXiv:1606.08415)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y
