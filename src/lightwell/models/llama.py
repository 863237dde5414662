"""The Llama family: Llama 2 and 3, SmolLM2, Mistral (with its window), Qwen2 (with biases), Qwen3 (with q/k norms),
Phi-3 and Phi-4; and with experts Mixtral, Qwen3-MoE and gpt-oss (with sinks and biases).

Pre-norm decoder layers with rotary positions, grouped query heads and a gated feed-forward network or a mixture of them
(Touvron et al., arXiv:2302.13971; Mistral arXiv:2310.06825; Phi-3 arXiv:2404.14219; Mixtral arXiv:2401.04088;
Qwen3 arXiv:2505.09388; gpt-oss arXiv:2508.10925).
"""

from lightwell.checkpoints.spec import ModelSpec
from lightwell.models.ops import Ops, Value
from lightwell.models.parts import attention, feed_forward
from lightwell.models.weights import Weights


def forward(ops: Ops, spec: ModelSpec, weights: Weights) -> Value:
    """Scores of the step's logit rows: (logit rows, vocab). The step itself is the business of ``ops``."""
    x = ops.embed(weights.embed, spec.embedding_scale)
    for index, layer in enumerate(weights.layers):
        x = ops.add(x, attention(ops, spec, layer, index, x))
        x = ops.add(x, feed_forward(ops, spec, layer, x))
    return ops.logits(ops.rms_norm(x, weights.final_norm, spec.norm_eps), weights.head)
