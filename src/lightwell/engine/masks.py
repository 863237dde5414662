"""Masks of a step's scores, for sequences whose answers have to follow a grammar.

Grammars are read, and masks filled, by threads of their own: llguidance does without the interpreter lock, so the masks
of a step are made while the model computes it, and no one waits for another one's grammar to be read.
"""

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightwell.engine.request import Request
from lightwell.engine.scheduler import Chunk
from lightwell.engine.sequence import Sequence
from lightwell.runtimes.base import Masks
from lightwell.sampling.grammar import Grammars, Matcher
from lightwell.units import Tokens

if TYPE_CHECKING:
    from lightwell.sampling.grammar import Bits


@dataclass(slots=True)
class _Follower:
    """``seen`` are the tokens of the answer that the matcher has taken in. For the last ``void`` draws of the step no
    mask was made."""

    matcher: Matcher
    seen: Tokens = 0
    void: int = 0


class StepMasks:
    """``vocab`` is the number of scores that the model gives, which may be more than there are tokens."""

    def __init__(self, grammars: Grammars, vocab: Tokens) -> None:
        self._grammars, self._words = grammars, -(-vocab // 32)
        self._followers: dict[str, _Follower] = {}
        self._filling = ThreadPoolExecutor(1, "mask-filler")

    def read(self, request: Request) -> Future[Matcher]:
        """Begin to read a request's grammar. Its exception is InvalidRequest where it cannot be followed."""
        return self._grammars.start(request.grammar)

    def follow(self, request: Request, matcher: Matcher) -> None:
        """The request can be scheduled now: its grammar is read."""
        self._followers[request.id] = _Follower(matcher)

    def failed(self, request_id: str) -> str:
        """Why a request's grammar cannot be followed any further; empty where it can, or there is none."""
        follower = self._followers.get(request_id)
        return "" if follower is None else follower.matcher.error

    def without_void(self, chunks: list[Chunk]) -> tuple[list[Chunk], list[int]]:
        """The chunks of an executed step without the guesses after which draws were not masked, and the places of the
        results that are left: had the guesses before them been right, unmasked tokens would count."""
        kept: list[Chunk] = []
        places: list[int] = []
        place = 0
        for chunk in chunks:
            follower = self._followers.get(chunk.sequence.request.id)
            void = follower.void if follower is not None and chunk.draws else 0
            places += range(place, place + chunk.results - void)
            place += chunk.results
            kept.append(chunk._replace(proposed=chunk.proposed[:-void]) if void else chunk)
        return kept, places

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._followers.pop(request_id, None)

    def of(self, chunks: list[Chunk]) -> Masks | None:
        """The masks of all logit rows of a step, being filled; None where no row has any."""
        rows: list[int] = []
        work: list[tuple[Sequence, Items[int], int]] = []
        masks = 0
        for chunk in chunks:
            rows += [-1] * chunk.scored
            if chunk.sequence.request.grammar and chunk.draws:
                work.append((chunk.sequence, chunk.proposed, masks))
                rows += range(masks, masks + chunk.draws)
                masks += chunk.draws
            else:
                rows += [-1] * chunk.draws
        if not work:
            return None
        bits = np.zeros((masks, self._words), np.uint32)
        filled = self._filling.submit(self._fill, work, bits)
        return Masks(np.array(rows, np.int32), bits, filled.result)

    def _fill(self, work: list[tuple[Sequence, Items[int], int]], bits: "Bits") -> None:
        for sequence, proposed, first in work:
            follower = self._followers[sequence.request.id]
            answer_start = len(sequence.request.tokens)
            follower.matcher.advance(sequence.known[answer_start + follower.seen :])
            follower.seen = len(sequence.known) - answer_start
            draws = 1 + len(proposed)
            written = follower.matcher.fill(bits[first : first + draws], proposed)
            follower.void = draws - written if written else 0
