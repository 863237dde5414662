"""All model families once more, as plainly as they can be written: float64, one position and one head at a time,
no cache, rotations as complex numbers. Shares nothing with the reference runtime but the meaning of the tensors."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.spec import Rope

Doubles = npt.NDArray[np.float64]


class Naive:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.spec = checkpoint.spec
        self.tensors = {name: dequantize(tensor).astype(np.float64) for name, tensor in checkpoint.tensors.items()}

    def logits(self, tokens: list[int]) -> Doubles:
        """(tokens, vocab)."""
        t, spec = self.tensors, self.spec
        stream = [t["embed.weight"][token] * spec.embedding_scale for token in tokens]
        for layer in range(spec.layers):
            stream = self.layer(f"layers.{layer}", layer, stream)
        head = t["embed.weight"] if spec.tied_head else t["head.weight"]
        scores = np.array([head @ self.norm(x, "final_norm") for x in stream])
        return capped(scores, spec.final_soft_cap)

    def layer(self, at: str, layer: int, stream: list[Doubles]) -> list[Doubles]:
        gemma, spec = self.spec.family == "gemma", self.spec
        normed = [self.norm(x, f"{at}.attn_norm") for x in stream]
        q = [self.heads(f"{at}.q", x, layer, p, spec.heads) for p, x in enumerate(normed)]
        k = [self.heads(f"{at}.k", x, layer, p, spec.kv_heads) for p, x in enumerate(normed)]
        v = [self.linear(f"{at}.v", x).reshape(spec.kv_heads, spec.head_dim) for x in normed]
        out = []
        for position, x in enumerate(stream):
            attended = self.linear(f"{at}.o", self.attend(q[position], k, v, position, layer))
            x = x + (self.norm(attended, f"{at}.post_attn_norm") if gemma else attended)
            h = self.norm(x, f"{at}.ffn_norm")
            down = self.mix(at, h, layer) if spec.mixture_of(layer) else self.feed_forward(at, h)
            out.append(x + (self.norm(down, f"{at}.post_ffn_norm") if gemma else down))
        return out

    def feed_forward(self, at: str, h: Doubles) -> Doubles:
        gated = self.activate(self.linear(f"{at}.gate", h), self.linear(f"{at}.up", h))
        return self.linear(f"{at}.down", gated)

    def mix(self, at: str, h: Doubles, layer: int) -> Doubles:
        mixture = self.spec.mixture_of(layer)
        assert mixture is not None
        weights = {i: math.exp(score) for i, score in enumerate(self.linear(f"{at}.router", h))}
        chosen = sorted(weights, key=lambda i: (-weights[i], i))[: mixture.per_token]
        total = sum(weights[i] for i in (chosen if mixture.normalized else weights))
        return sum(weights[i] / total * self.feed_forward(f"{at}.experts.{i}", h) for i in chosen)

    def norm(self, x: Doubles, name: str) -> Doubles:
        return x / math.sqrt(sum(x * x) / len(x) + self.spec.norm_eps) * self.tensors[f"{name}.weight"]

    def linear(self, name: str, x: Doubles) -> Doubles:
        return self.tensors[f"{name}.weight"] @ x + self.tensors.get(f"{name}.bias", 0)

    def heads(self, name: str, x: Doubles, layer: int, position: int, count: int) -> list[Doubles]:
        rows = list(self.linear(name, x).reshape(count, self.spec.head_dim))
        if self.spec.qk_norm:
            rows = [self.norm(row, f"{name}_norm") for row in rows]
        return [rotate(row, self.spec.rope_of(layer), position) for row in rows]

    def attend(self, q: list[Doubles], k: list[list[Doubles]], v: list[Doubles], position: int, layer: int) -> Doubles:
        window = self.spec.window(layer)
        first = 0 if window is None else max(0, position - window + 1)
        out = []
        for head, query in enumerate(q):
            kv = head // (self.spec.heads // self.spec.kv_heads)
            seen = range(first, position + 1)
            scores = [capped(query @ k[p][kv] * self.spec.query_scale, self.spec.attention_soft_cap) for p in seen]
            weights = [math.exp(score) for score in scores]
            sink = math.exp(self.tensors[f"layers.{layer}.sinks.weight"][head]) if self.spec.sinks else 0
            out.append(sum(w * v[p][kv] for w, p in zip(weights, seen, strict=True)) / (sum(weights) + sink))
        return np.concatenate(out)

    def activate(self, gate: Doubles, up: Doubles) -> Doubles:
        if self.spec.activation == "silu":
            return np.array([y / (1 + math.exp(-y)) for y in gate]) * up
        if self.spec.activation == "clamped_swiglu":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return np.array([y / (1 + math.exp(-1.702 * y)) for y in gate]) * (up + 1)
        return np.array([0.5 * y * (1 + math.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) for y in gate]) * up


def capped(x: Any, cap: float) -> Any:
    return cap * np.tanh(x / cap) if cap else x


def rotate(row: Doubles, rope: Rope, position: int) -> Doubles:
    """Plain frequencies only."""
    row = row.copy()
    for pair in range(rope.dims // 2):
        a, b = (2 * pair, 2 * pair + 1) if rope.interleaved else (pair, pair + rope.dims // 2)
        turned = complex(row[a], row[b]) * np.exp(1j * position * rope.theta ** (-2 * pair / rope.dims))
        row[a], row[b] = turned.real, turned.imag
    return row
