"""Ops: the dozen operations that every model is written in.

Each runtime reads the same model function through its own Ops: NumPy computes, the CPU runtime records.
A value has one row a token of the step; what it is besides (array, symbol, counter) is the runtime's own business.
"""

from typing import Any, Protocol, TypeAlias

from lightwell.checkpoints.spec import Activation, Rope
from lightwell.checkpoints.tensor import Tensor
from lightwell.models.weights import Experts, Linear

Value: TypeAlias = Any


class Ops(Protocol):
    def embed(self, table: Tensor, scale: float) -> Value:
        """Rows of the token table for the step's tokens, times ``scale``: (tokens, width)."""
        ...

    def rms_norm(self, x: Value, weight: Tensor, eps: float) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight over each run of ``len(weight)`` columns (a head, or the whole row)."""
        ...

    def linear(self, x: Value, *layers: Linear) -> tuple[Value, ...]:
        """x @ weight.T + bias for each layer; several layers read the same x in one pass."""
        ...

    def rotary(self, x: Value, rope: Rope, head_dim: int) -> Value:
        """Rotate each head of x by its token's position."""
        ...

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Value:
        """Write k and v into the paged cache of ``layer`` first, then attend from q reading only the cache.

        Causal; with a window a token sees the last ``window`` tokens, itself included. A score is ``scale`` times the
        product of query and key, and with a soft cap ``soft_cap * tanh(score / soft_cap)``. ``sinks`` (heads) are
        scores that take part in the softmax and bring no value. (tokens, heads * head_dim)
        """
        ...

    def gated(self, gate: Value, up: Value, activation: Activation) -> Value:
        """activation(gate) * up."""
        ...

    def experts(self, x: Value, experts: Experts, activation: Activation) -> Value:
        """The weighted sum of what the ``per_token`` experts with the best router scores make of each row.

        Among equal scores the lower id wins; the sum runs in ascending order of ids. See Mixture for the weights.
        """
        ...

    def add(self, a: Value, b: Value) -> Value: ...

    def logits(self, x: Value, head: Linear, soft_cap: float = 0.0) -> Value:
        """x @ head.T, soft-capped as in attention, for the rows of the step that need a token: (logit rows, vocab)."""
        ...


def optional_norm(ops: Ops, x: Value, weight: Tensor | None, eps: float) -> Value:
    """rms_norm, or x as it is where the architecture has no such norm."""
    return x if weight is None else ops.rms_norm(x, weight, eps)
