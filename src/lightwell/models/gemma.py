"""Gemma 2 and 3 (text): norms before and after each half of a layer, and layers with a window between full ones.

Gemma 2 caps the scores of attention and of tokens softly (Gemma Team, arXiv:2408.00118). Gemma 3 has norms on queries
and keys instead, and its layers with a window rotate by their own, shorter-reaching frequencies (arXiv:2503.19786).
Embeddings are scaled by sqrt(width). Norm weights are stored as multipliers, as GGUF has them.
"""

from lightwell.checkpoints.spec import ModelSpec
from lightwell.models.ops import Ops, Value, optional_norm
from lightwell.models.parts import attention, feed_forward
from lightwell.models.weights import Weights


def forward(ops: Ops, spec: ModelSpec, weights: Weights) -> Value:
    """Scores of the step's logit rows: (logit rows, vocab). The step itself is the business of ``ops``."""
    x = ops.embed(weights.embed, spec.embedding_scale)
    for index, layer in enumerate(weights.layers):
        attended = attention(ops, spec, layer, index, x)
        x = ops.add(x, optional_norm(ops, attended, layer.post_attn_norm, spec.norm_eps))
        fed = feed_forward(ops, spec, layer, x)
        x = ops.add(x, optional_norm(ops, fed, layer.post_ffn_norm, spec.norm_eps))
    return ops.logits(ops.rms_norm(x, weights.final_norm, spec.norm_eps), weights.head, spec.final_soft_cap)
