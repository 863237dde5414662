"""Gemma 3 (text): norms before and after each half of a layer, q/k norms, and layers with a window between full ones.

Layers with a window rotate by their own, shorter-reaching frequencies; embeddings are scaled by sqrt(width)
(Gemma Team, arXiv:2503.19786). Norm weights are stored as multipliers, as GGUF has them.
"""

from lightwell.checkpoints.spec import ModelSpec
from lightwell.models.ops import Ops, Value, optional_norm
from lightwell.models.weights import Layer, Weights


def forward(ops: Ops, spec: ModelSpec, weights: Weights) -> Value:
    """Scores of the step's logit rows: (logit rows, vocab). The step itself is the business of ``ops``."""
    x = ops.embed(weights.embed, spec.embedding_scale)
    for index, layer in enumerate(weights.layers):
        x = _attention(ops, spec, layer, index, x)
        x = _feed_forward(ops, spec, layer, x)
    return ops.logits(ops.rms_norm(x, weights.final_norm, spec.norm_eps), weights.head)


def _attention(ops: Ops, spec: ModelSpec, layer: Layer, index: int, x: Value) -> Value:
    q, k, v = ops.linear(ops.rms_norm(x, layer.attn_norm, spec.norm_eps), layer.q, layer.k, layer.v)
    q = ops.rotary(optional_norm(ops, q, layer.q_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    k = ops.rotary(optional_norm(ops, k, layer.k_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    attended = ops.attention(q, k, v, index, spec.query_scale, spec.window(index))
    (attended,) = ops.linear(attended, layer.o)
    return ops.add(x, optional_norm(ops, attended, layer.post_attn_norm, spec.norm_eps))


def _feed_forward(ops: Ops, spec: ModelSpec, layer: Layer, x: Value) -> Value:
    gate, up = ops.linear(ops.rms_norm(x, layer.ffn_norm, spec.norm_eps), layer.gate, layer.up)
    (down,) = ops.linear(ops.gated(gate, up, spec.activation), layer.down)
    return ops.add(x, optional_norm(ops, down, layer.post_ffn_norm, spec.norm_eps))
