"""CostModel: how long a step takes, learned from the steps so far.

A step's time is modelled as a sum of five costs, none negative: one for the step itself, one for each decoding row, one
for each token that it reads of the KV cache, and the same two for prefill. Least squares on relative errors; what was
learned fades, so that the model follows a machine whose speed changes. The same steps always give the same model.
"""

from operator import mul
from typing import NamedTuple

from lightwell.units import Seconds, Tokens

_MEMORY = 0.98  # what a step counts after one more: about the last fifty count
_SWEEPS = 20
_SHORTEST: Seconds = 1e-6  # below it a duration says nothing


class Load(NamedTuple):
    """The work of one step. ``*_context``: KV entries read, summed over the rows."""

    decoding: int = 0
    decoding_context: Tokens = 0
    prefill: Tokens = 0
    prefill_context: Tokens = 0

    def and_chunk(self, start: Tokens, tokens: Tokens) -> "Load":
        """With one more chunk, of ``tokens`` known tokens from position ``start`` on. A single token is decoding."""
        read = tokens * start + tokens * (tokens + 1) // 2
        if tokens == 1:
            return self._replace(decoding=self.decoding + 1, decoding_context=self.decoding_context + read)
        return self._replace(prefill=self.prefill + tokens, prefill_context=self.prefill_context + read)


def load_of(chunks: list[tuple[Tokens, Tokens]]) -> Load:
    """The load of these chunks, each (start, tokens)."""
    load = Load()
    for chunk in chunks:
        load = load.and_chunk(*chunk)
    return load


class CostModel:
    def __init__(self) -> None:
        self._costs = [0.0] * 5  # seconds
        self._products = [[0.0] * 5 for _ in range(5)]  # the normal equations: products * costs = targets
        self._targets = [0.0] * 5

    def learn(self, chunks: list[tuple[Tokens, Tokens]], seconds: Seconds) -> None:
        """A step of these chunks took so long."""
        if not chunks or seconds < _SHORTEST:
            return
        relative = [feature / seconds for feature in _features(load_of(chunks))]
        for row, feature in zip(self._products, relative, strict=True):
            for column, other in enumerate(relative):
                row[column] = row[column] * _MEMORY + feature * other
        self._targets = [old * _MEMORY + new for old, new in zip(self._targets, relative, strict=True)]
        self._solve()

    def _solve(self) -> None:
        """Descend along one cost after another, from where the last step left them. What no recent step has told
        anything about stays as it is."""
        costs = self._costs
        for _ in range(_SWEEPS):
            for place, row in enumerate(self._products):
                if row[place] > 0:
                    others = sum(map(mul, row, costs)) - row[place] * costs[place]
                    costs[place] = max(0.0, (self._targets[place] - others) / row[place])

    def step_seconds(self, load: Load) -> Seconds:
        """How long a step with this load takes; 0 while nothing is known."""
        return sum([cost * feature for cost, feature in zip(self._costs, _features(load), strict=True)])


def _features(load: Load) -> list[float]:
    return [1.0, float(load.decoding), load.decoding_context / 1000, float(load.prefill), load.prefill_context / 1000]
