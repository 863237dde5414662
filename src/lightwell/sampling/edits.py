"""From a sequence to the edits of its next scores: penalties, biases and forbidden stop tokens as sparse columns.

They are kept up to date token by token, as a long context would make them slow to gather in every step.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lightwell.sampling.params import SamplingParams
from lightwell.units import Tokens


class Edits(NamedTuple):
    """Changes of one row of scores, an entry a token, each token at most once (see ScoreEdits in runtimes/base.py).

    All are (E,): the score of ``tokens`` is divided by ``factors`` where it is positive and multiplied where it is not;
    then ``addends`` are added. -inf forbids a token.
    """

    tokens: npt.NDArray[np.int32]
    factors: npt.NDArray[np.float32]
    addends: npt.NDArray[np.float32]


NO_EDITS = Edits(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))


def needs_edits(params: SamplingParams, min_tokens: Tokens = 0, stop_tokens: Collection[int] = ()) -> bool:
    """Whether a request's scores are edited at all: if not, nobody has to make a ScoreEditor for it."""
    forbids = min_tokens > 0 and len(stop_tokens) > 0
    return _penalizes(params) or bool(params.logit_bias) or forbids


def _penalizes(params: SamplingParams) -> bool:
    penalties = (params.frequency_penalty, params.presence_penalty)
    return params.repetition_penalty != 1 or any(penalties)


class ScoreEditor:
    """The edits of one sequence's next draw. ``answer`` are tokens of it that are known already.

    Until the answer has ``min_tokens`` tokens, ``stop_tokens`` are forbidden.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        min_tokens: Tokens = 0,
        stop_tokens: Collection[int] = (),
        answer: Sequence[int] = (),
    ) -> None:
        self._params, self._min_tokens = params, min_tokens
        self._penalizes = _penalizes(params)
        self._answered: Tokens = 0
        self._counts: Counter[int] = Counter()  # of the answer's tokens, where penalties need them
        repeated = dict.fromkeys(prompt if params.repetition_penalty != 1 else ())
        forbidden = dict.fromkeys(stop_tokens if min_tokens > len(answer) else ())
        edited = [*dict.fromkeys([*repeated, *forbidden, *params.logit_bias])]
        self._entries = {token: i for i, token in enumerate(edited)}  # where each token stands in the columns
        self._forbidden = [self._entries[token] for token in forbidden]
        self._tokens = np.array(edited, np.int32)  # this one and the next two have room to grow
        self._factors = np.ones(len(edited), np.float32)
        self._factors[: len(repeated)] = params.repetition_penalty
        self._addends = np.zeros(len(edited), np.float32)
        for token, bias in params.logit_bias.items():
            self._addends[self._entries[token]] = bias
        for token in answer:
            self.push(token)

    def push(self, token: int) -> None:
        """The answer has one more token."""
        self._answered += 1
        if self._penalizes:
            self._counts[token] += 1
            entry = self._entry(token)
            self._factors[entry] = self._params.repetition_penalty
            self._addends[entry] = self._addend(token, self._counts[token])

    def columns(self, extra: Sequence[int] = ()) -> Edits:
        """The edits of the draw that follows the known tokens and then ``extra``, which are only supposed.

        The arrays may be the editor's own: use or copy them before the next push.
        """
        size = len(self._entries)
        edits = Edits(self._tokens[:size], self._factors[:size], self._addends[:size])
        if extra and self._penalizes:
            edits = self._supposing(extra, edits)
        if self._answered + len(extra) < self._min_tokens:
            addends = edits.addends.copy()
            addends[self._forbidden] = -np.inf
            edits = edits._replace(addends=addends)
        return edits

    def _supposing(self, extra: Sequence[int], edits: Edits) -> Edits:
        supposed, known = Counter(extra), len(edits.tokens)
        new = {token: known + i for i, token in enumerate(token for token in supposed if token not in self._entries)}
        tokens = np.append(edits.tokens, np.array(list(new), np.int32))
        factors = np.append(edits.factors, np.ones(len(new), np.float32))
        addends = np.append(edits.addends, np.zeros(len(new), np.float32))
        for token, count in supposed.items():
            entry = new[token] if token in new else self._entries[token]
            factors[entry] = self._params.repetition_penalty
            addends[entry] = self._addend(token, self._counts[token] + count)
        return Edits(tokens, factors, addends)

    def _addend(self, token: int, count: int) -> float:
        """Where the answer has a token ``count`` >= 1 times."""
        params = self._params
        penalty = params.presence_penalty + params.frequency_penalty * count
        return params.logit_bias.get(token, 0.0) - penalty

    def _entry(self, token: int) -> int:
        """Where the token stands in the columns, which get a place for it if they have none."""
        entry = self._entries.setdefault(token, len(self._entries))
        if entry == len(self._tokens):
            more = max(64, entry)
            self._tokens = np.append(self._tokens, np.zeros(more, np.int32))
            self._factors = np.append(self._factors, np.ones(more, np.float32))
            self._addends = np.append(self._addends, np.zeros(more, np.float32))
        self._tokens[entry] = token
        return entry
