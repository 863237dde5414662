"""The two halves of a decoder layer, as the families share them: attention, and a feed-forward network or experts.

Grouped query heads with rotary positions (Su et al., arXiv:2104.09864; Ainslie et al., arXiv:2305.13245), gated
networks (Shazeer, arXiv:2002.05202), mixtures of experts (Jiang et al., arXiv:2401.04088).
"""

from lightwell.checkpoints.spec import ModelSpec
from lightwell.models.ops import Ops, Value, optional_norm
from lightwell.models.weights import Experts, Layer


def attention(ops: Ops, spec: ModelSpec, layer: Layer, index: int, x: Value) -> Value:
    """What attention adds to the stream x, before any norm on it."""
    q, k, v = ops.linear(ops.rms_norm(x, layer.attn_norm, spec.norm_eps), layer.q, layer.k, layer.v)
    q = ops.rotary(optional_norm(ops, q, layer.q_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    k = ops.rotary(optional_norm(ops, k, layer.k_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    window, cap = spec.window(index), spec.attention_soft_cap
    attended = ops.attention(q, k, v, index, spec.query_scale, window, cap, layer.sinks)
    (attended,) = ops.linear(attended, layer.o)
    return attended


def feed_forward(ops: Ops, spec: ModelSpec, layer: Layer, x: Value) -> Value:
    """What the second half of a layer adds to the stream x, before any norm on it."""
    x = ops.rms_norm(x, layer.ffn_norm, spec.norm_eps)
    if isinstance(layer.ffn, Experts):
        return ops.experts(x, layer.ffn, spec.activation)
    gate, up = ops.linear(x, layer.ffn.gate, layer.ffn.up)
    (down,) = ops.linear(ops.gated(gate, up, spec.activation), layer.ffn.down)
    return down
