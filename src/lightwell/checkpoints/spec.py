"""ModelSpec: the shape of a model, as its file states it, and the arithmetic that follows from the shape."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from lightwell.units import Bytes, Tokens

Family = Literal["llama", "gemma"]
Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
KVDtype = Literal["f32", "f16", "int8"]

_KV_SCALE_BYTES = 4  # of int8, for each key and each value of a head


@dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling for contexts longer than the trained one.

    ``linear`` divides every frequency by ``factor``. ``llama3`` and ``yarn`` treat low and high frequencies apart;
    their fields are those of the Hugging Face configuration. ``factors`` (llama3 in GGUF) are divisors by frequency,
    taken as they stand. ``longrope`` has two sets of them: ``short_factors`` for contexts up to ``original_context``,
    ``factors`` for longer ones. ``attention_factor`` multiplies the cosines and sines (yarn, longrope).
    """

    kind: Literal["linear", "llama3", "yarn", "factors", "longrope"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: Tokens = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True  # yarn's blend begins and ends at whole pairs of dimensions (gpt-oss: anywhere)
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()


def yarn_attention_factor(factor: float) -> float:
    """What yarn multiplies cosines and sines by unless the file says otherwise (Peng et al., arXiv:2309.00071, 3.4)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original_context: Tokens) -> float:
    """The same for longrope (Ding et al., arXiv:2402.13753), ``factor`` times beyond its original context."""
    return math.sqrt(1 + math.log(factor) / math.log(original_context)) if factor > 1 < original_context else 1.0


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

    def within(self, context_tokens: Tokens) -> "Rope":
        """This rope for sequences of up to so many tokens: longrope's one set of factors or the other.

        One set for all of a model's sequences, whatever their length so far: a token's rotation must not depend on how
        many will follow it, or cached keys and recomputed ones would differ.
        """
        scaling = self.scaling
        if scaling is None or scaling.kind != "longrope":
            return self
        factors = scaling.factors if context_tokens > scaling.original_context else scaling.short_factors
        return replace(self, scaling=replace(scaling, kind="factors", factors=factors, short_factors=()))


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts in place of feed-forward networks (Shazeer et al., arXiv:1701.06538).

    A router scores the experts; the ``per_token`` best compute the token, and their outputs are added, each times its
    weight. Weights are the softmax over all scores, and ``normalized`` ones add up to 1, which is the same as the
    softmax over the scores of the chosen experts alone.
    """

    experts: int
    per_token: int
    ffn_width: int  # of one expert
    normalized: bool
    dense_layers: frozenset[int] = frozenset()  # layers that have an ordinary feed-forward network


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
    post_norms: bool = False  # RMS norm on what attention and feed-forward add to the stream (Gemma)
    attention_soft_cap: float = 0.0  # a score x of attention becomes cap * tanh(x / cap) (Gemma 2); 0: it does not
    final_soft_cap: float = 0.0  # the same for the scores of tokens
    mixture: Mixture | None = None
    sinks: bool = False  # every head has a score of its own in the softmax, without a value (gpt-oss)

    @property
    def query_scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> Tokens | None:
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> Rope:
        """How this layer rotates in the contexts that the model is used for."""
        local = self.local_rope if self.window(layer) is not None else None
        return (local or self.rope).within(self.context_tokens)

    def mixture_of(self, layer: int) -> Mixture | None:
        return self.mixture if self.mixture is not None and layer not in self.mixture.dense_layers else None

    def kv_bytes_per_token(self, dtype: KVDtype) -> Bytes:
        """Bytes of KV cache that one token takes in all layers: keys, values, and the scales of int8."""
        head = {"f32": 4 * self.head_dim, "f16": 2 * self.head_dim, "int8": self.head_dim + _KV_SCALE_BYTES}[dtype]
        return 2 * self.layers * self.kv_heads * head

    def layer_parameters(self, layer: int = 0, *, active: bool = False) -> int:
        """Weights of a layer's matrices; norms and biases cost no multiplications to speak of and are left out.

        ``active``: only those that one token is multiplied with, which of a mixture are its chosen experts'.
        """
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if (mixture := self.mixture_of(layer)) is None:
            return attention + 3 * self.width * self.ffn_width
        router, expert = self.width * mixture.experts, 3 * self.width * mixture.ffn_width
        return attention + router + expert * (mixture.per_token if active else mixture.experts)

    def parameters(self) -> int:
        """Weights of all matrices: the layers', the token table, and the head where it is not the table."""
        tables = self.vocab * self.width * (1 if self.tied_head else 2)
        return tables + sum(self.layer_parameters(layer) for layer in range(self.layers))

    def operations_per_token(self, context_tokens: Tokens, *, with_head: bool = True) -> int:
        """Multiplications and additions (2 a weight) to compute one token that sees ``context_tokens`` tokens."""
        seen = sum(min(context_tokens, self.window(i) or context_tokens) for i in range(self.layers))
        attention = 4 * self.heads * self.head_dim * seen
        head = 2 * self.width * self.vocab if with_head else 0
        layers = sum(self.layer_parameters(layer, active=True) for layer in range(self.layers))
        return 2 * layers + attention + head
