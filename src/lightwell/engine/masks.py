"""Masks of a step's scores, for sequences whose answers have to follow a grammar.

Grammars are read, and masks filled, by threads of their own: llguidance does without the interpreter lock, so the masks
of a step are made while the model computes it, and no one waits for another one's grammar to be read.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from lightwell.engine.request import Request
from lightwell.engine.scheduler import Chunk
from lightwell.engine.sequence import Sequence
from lightwell.runtimes.base import Masks
from lightwell.sampling.grammar import Bits, GrammarVocabulary, Matcher
from lightwell.units import Tokens


@dataclass(slots=True)
class _Follower:
    """``seen`` are the tokens of the answer that the matcher has taken in."""

    matcher: Matcher
    seen: Tokens = 0


class StepMasks:
    """``make_vocabulary`` is called when the first grammar comes."""

    def __init__(self, make_vocabulary: Callable[[], GrammarVocabulary]) -> None:
        self._make_vocabulary = make_vocabulary
        self._vocabulary: GrammarVocabulary | None = None
        self._followers: dict[str, _Follower] = {}
        self._reading = ThreadPoolExecutor(1, "grammar-reader")
        self._filling = ThreadPoolExecutor(1, "mask-filler")

    def read(self, request: Request) -> Future[None]:
        """Begin to read a request's grammar; it can be scheduled once that is done."""
        return self._reading.submit(self._read, request)

    def failed(self, request_id: str) -> str:
        """Why a request's grammar cannot be followed any further; empty where it can, or there is none."""
        follower = self._followers.get(request_id)
        return "" if follower is None else follower.matcher.failed

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._followers.pop(request_id, None)

    def of(self, chunks: list[Chunk]) -> Masks | None:
        """The masks of all logit rows of a step, being filled; None where no row has any."""
        if not any(chunk.draws and chunk.sequence.request.grammar for chunk in chunks):
            return None
        rows: list[int] = []
        work: list[tuple[Sequence, list[int], int]] = []
        masks = 0
        for chunk in chunks:
            rows += [-1] * chunk.scored
            if chunk.sequence.request.grammar and chunk.draws:
                work.append((chunk.sequence, chunk.proposed, masks))
                rows += range(masks, masks + chunk.draws)
                masks += chunk.draws
            else:
                rows += [-1] * chunk.draws
        bits = self._new_bits(masks)
        filled = self._filling.submit(self._fill, work, bits)
        return Masks(np.array(rows, np.int32), bits, filled.result)

    def _new_bits(self, masks: int) -> Bits:
        assert self._vocabulary is not None, "a grammar is read before its request is scheduled"
        return np.full((masks, -(-self._vocabulary.vocab // 32)), 0xFFFFFFFF, np.uint32)

    def _read(self, request: Request) -> None:
        self._vocabulary = self._vocabulary or self._make_vocabulary()
        matcher = Matcher(self._vocabulary, request.grammar)
        matcher.fill(
            self._new_bits(1)
        )  # the first mask takes longest, as it makes the lexer; no step is to wait for it
        self._followers[request.id] = _Follower(matcher)

    def _fill(self, work: list[tuple[Sequence, list[int], int]], bits: Bits) -> None:
        for sequence, proposed, first in work:
            follower = self._followers[sequence.request.id]
            answer_start = len(sequence.request.tokens)
            follower.matcher.advance(sequence.known[answer_start + follower.seen :])
            follower.seen = len(sequence.known) - answer_start
            follower.matcher.fill(bits[first : first + 1 + len(proposed)], proposed)
