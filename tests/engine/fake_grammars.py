"""Grammars for the fake runtime: what may come next is a rule over the answer so far; nothing has to be compiled."""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from lightwell.engine.masks import StepMasks

VOCAB, STOP = 100, 0
MOST_MASKS = 3  # in one step: guesses that lead further make the grammar too complex


def allowed_after(answer: Sequence[int]) -> npt.NDArray[np.bool_]:
    """(VOCAB,): two tokens of three, which ones depends on the last token; the stop token in every fourth place."""
    last = answer[-1] if answer else 1
    allowed = (np.arange(VOCAB) + last + len(answer)) % 3 != 0
    allowed[STOP] = len(answer) % 4 == 3
    return allowed


class FakeMatcher:
    """As sampling/grammar.py's: no masks after a proposed token that is not allowed, or that leads too far."""

    def __init__(self) -> None:
        self.error = ""
        self._answer: list[int] = []

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert allowed_after(self._answer)[token], "a token that no mask allowed"
            self._answer.append(token)

    def fill(self, rows: npt.NDArray[np.uint32], proposed: Sequence[int] = ()) -> int:
        rows[:] = 0xFFFFFFFF
        for place, row in enumerate(rows):
            if place == MOST_MASKS:
                return place
            allowed = allowed_after([*self._answer, *proposed[:place]])
            row[:] = np.packbits(np.pad(allowed, (0, -VOCAB % 32)), bitorder="little").view(np.uint32)
            if place == len(proposed) or proposed[place] == STOP or not allowed[proposed[place]]:
                break
        return place + 1


class FakeGrammars:
    def start(self, grammar: str) -> Future[FakeMatcher]:
        read: Future[FakeMatcher] = Future()
        read.set_result(FakeMatcher())
        return read


def fake_masks() -> StepMasks:
    return StepMasks(FakeGrammars(), VOCAB)
