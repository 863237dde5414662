"""Causal attention of a step over the paged cache, one sequence at a time, with grouped query heads.

Vaswani et al., arXiv:1706.03762; Ainslie et al., arXiv:2305.13245 (groups); Beltagy et al., arXiv:2004.05150 (windows).
A chunk's scores are in memory at once, heads * rows * visible positions floats: feed long prompts in chunks.
"""

from dataclasses import dataclass

import numpy as np

from lightwell.runtimes.base import Floats, Int32s, StepInput
from lightwell.runtimes.reference.cache import LayerCache


@dataclass(frozen=True)
class AttentionRule:
    """How products of queries and keys become weights, as Ops.attention has it."""

    scale: float
    window: int | None
    soft_cap: float
    sinks: Floats | None


def attend(q: Floats, k: Floats, v: Floats, step: StepInput, cache: LayerCache, rule: AttentionRule) -> Floats:
    """Write every sequence's keys and values, then attend reading only the cache: (tokens, heads * head_dim)."""
    sequences = [
        (slice(begin, end), step.block_tables[i], int(step.positions[begin]))
        for i, (begin, end) in enumerate(zip(step.starts[:-1], step.starts[1:], strict=True))
        if begin < end
    ]
    for rows, table, position in sequences:
        cache.write(table, position, k[rows], v[rows])
    out = np.empty_like(q)
    for rows, table, position in sequences:
        out[rows] = _attend_one(q[rows], cache, table, position, rule)
    return out


def _attend_one(q: Floats, cache: LayerCache, table: Int32s, position: int, rule: AttentionRule) -> Floats:
    """One sequence's rows of q, whose first token stands at ``position``."""
    end, window = position + len(q), rule.window
    start = 0 if window is None else max(0, position + 1 - window)  # the first position that any row sees
    keys, values = cache.read(table, start, end)
    kv_heads, _, head_dim = keys.shape
    heads = q.reshape(len(q), kv_heads, -1, head_dim).transpose(1, 2, 0, 3)  # (kv_heads, group, rows, head_dim)

    scores = heads @ keys[:, None].swapaxes(-1, -2) * np.float32(rule.scale)  # (kv_heads, group, rows, visible)
    scores = soft_capped(scores, rule.soft_cap)
    back = np.arange(position, end)[:, None] - np.arange(start, end)  # how far a row looks back to a position
    visible = back >= 0 if window is None else (back >= 0) & (back < window)
    sinks = None if rule.sinks is None else rule.sinks.reshape(kv_heads, -1, 1, 1)
    weights = _softmax(np.where(visible, scores, np.float32(-np.inf)), sinks)
    return (weights @ values[:, None]).transpose(2, 0, 1, 3).reshape(q.shape)


def soft_capped(scores: Floats, cap: float) -> Floats:
    """Scores bent to stay within -cap..cap (Gemma Team, arXiv:2408.00118); as they are where cap is 0."""
    return np.float32(cap) * np.tanh(scores / np.float32(cap)) if cap else scores


def _softmax(scores: Floats, sinks: Floats | None) -> Floats:
    """Over the last axis; a sink is one more score, whose weight is left out (Xiao et al., arXiv:2309.17453)."""
    most = scores.max(axis=-1, keepdims=True)
    most = most if sinks is None else np.maximum(most, sinks)
    weights: Floats = np.exp(scores - most)
    weights /= weights.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - most))
    return weights
