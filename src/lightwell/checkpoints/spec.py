"""ModelSpec: the shape of a model, as its file states it, and the arithmetic that follows from the shape."""

import math
from dataclasses import dataclass
from typing import Literal

from lightwell.units import Bytes, Tokens

Family = Literal["llama", "gemma3"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling for contexts longer than the trained one.

    ``linear`` divides every frequency by ``factor``. ``llama3`` and ``yarn`` treat low and high frequencies apart;
    their fields are those of the Hugging Face configuration. ``factors`` (llama3 in GGUF, longrope) are divisors by
    frequency, taken as they stand. ``attention_factor`` multiplies the cosines and sines (yarn).
    """

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: Tokens = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    factors: tuple[float, ...] = ()


def yarn_attention_factor(factor: float) -> float:
    """What yarn multiplies cosines and sines by unless the file says otherwise (Peng et al., arXiv:2309.00071, 3.4)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., arXiv:2104.09864).

    ``interleaved`` rotates neighbours (2i, 2i+1), as GGUF stores the Llama architecture; otherwise halves
    (i, i + dims/2), as Hugging Face does and GGUF for Qwen and Gemma.
    """

    theta: float
    dims: int
    interleaved: bool
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class ModelSpec:
    """One decoder's shape. Everything is stated by the file or its format's documented default; head_dim is derived
    from width / heads only where the file does not state it."""

    name: str
    architecture: str  # as the file says: llama, qwen2, qwen3, gemma3, mistral...
    family: Family  # which function in models/ reads it
    layers: int
    width: int  # also called hidden size or embedding length
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    vocab: int
    context_tokens: Tokens
    norm_eps: float
    rope: Rope
    activation: Activation
    tied_head: bool  # the output head is the token table
    qk_norm: bool = False  # RMS norm on each query and key head before the rotation (Qwen3, Gemma 3)
    attention_scale: float = 0.0  # 0: 1/sqrt(head_dim)
    embedding_scale: float = 1.0  # Gemma multiplies embeddings by sqrt(width)
    local_rope: Rope | None = None  # rope of the layers that have a window (Gemma 3)
    windows: tuple[Tokens | None, ...] = ()  # per layer: how many tokens it sees back, itself included; None: all

    @property
    def query_scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> Tokens | None:
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.local_rope is not None and self.window(layer) is not None else self.rope

    def kv_bytes_per_token(self, value_bytes: int = 2) -> Bytes:
        """Bytes of KV cache that one token takes in all layers, keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * value_bytes

    def layer_parameters(self) -> int:
        """Weights of one layer's matrices; norms and biases cost no multiplications to speak of and are left out."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.ffn_width

    def operations_per_token(self, context_tokens: Tokens, *, with_head: bool = True) -> int:
        """Multiplications and additions (2 a weight) to compute one token that sees ``context_tokens`` tokens."""
        seen = sum(min(context_tokens, self.window(i) or context_tokens) for i in range(self.layers))
        attention = 4 * self.heads * self.head_dim * seen
        head = 2 * self.width * self.vocab if with_head else 0
        return 2 * self.layers * self.layer_parameters() + attention + head
