"""The Llama family: Llama 2 and 3, SmolLM2, Mistral (with its window), Qwen2 (with biases), Qwen3 (with q/k norms).

Pre-norm decoder layers with rotary positions, grouped query heads and a gated feed-forward network
(Touvron et al., arXiv:2302.13971; Mistral arXiv:2310.06825; Qwen3 arXiv:2505.09388).
"""

from lightwell.checkpoints.spec import ModelSpec
from lightwell.models.ops import Ops, Value, optional_norm
from lightwell.models.weights import Layer, Weights


def forward(ops: Ops, spec: ModelSpec, weights: Weights) -> Value:
    """Scores of the step's logit rows: (logit rows, vocab). The step itself is the business of ``ops``."""
    x = ops.embed(weights.embed, spec.embedding_scale)
    for index, layer in enumerate(weights.layers):
        x = _layer(ops, spec, layer, index, x)
    return ops.logits(ops.rms_norm(x, weights.final_norm, spec.norm_eps), weights.head)


def _layer(ops: Ops, spec: ModelSpec, layer: Layer, index: int, x: Value) -> Value:
    q, k, v = ops.linear(ops.rms_norm(x, layer.attn_norm, spec.norm_eps), layer.q, layer.k, layer.v)
    q = ops.rotary(optional_norm(ops, q, layer.q_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    k = ops.rotary(optional_norm(ops, k, layer.k_norm, spec.norm_eps), spec.rope_of(index), spec.head_dim)
    attended = ops.attention(q, k, v, index, spec.query_scale, spec.window(index))
    (attended,) = ops.linear(attended, layer.o)
    x = ops.add(x, attended)

    gate, up = ops.linear(ops.rms_norm(x, layer.ffn_norm, spec.norm_eps), layer.gate, layer.up)
    (down,) = ops.linear(ops.gated(gate, up, spec.activation), layer.down)
    return ops.add(x, down)
