"""Speculators for tests: one that knows the answer, one that lies, one that guesses at random."""

import random
from collections.abc import Callable, Sequence

from lightwell.engine.scheduler import Chunk
from lightwell.engine.sequence import Sequence as Continuation
from lightwell.events import Event
from lightwell.runtimes.fake import FakeModel, slow_reference


class Drafter:
    """Proposes what ``guess(sequence)`` says for every chunk that samples, and keeps what became of it."""

    def __init__(self, guess: Callable[[Continuation], list[int]]) -> None:
        self.guess = guess
        self.events: list[Event] = []

    def propose(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        return [self.guess(chunk.sequence) if chunk.samples else [] for chunk in chunks]

    def observe(self, events: Sequence[Event]) -> None:
        self.events += events


def knowing(count: int, model: FakeModel | None = None) -> Drafter:
    def guess(sequence: Continuation) -> list[int]:
        return slow_reference(sequence.known, count, sequence.request.sampling, model)

    return Drafter(guess)


def lying(count: int, vocab: int = 1000) -> Drafter:
    """Every guess is wrong."""

    def guess(sequence: Continuation) -> list[int]:
        return [(token + 1) % vocab for token in slow_reference(sequence.known, count, sequence.request.sampling)]

    return Drafter(guess)


def random_guesses(most: int, vocab: int, model: FakeModel | None = None, right: float = 0.6) -> Drafter:
    """Any number of guesses, each of them right with this probability."""
    drawn = random.Random(1)

    def guess(sequence: Continuation) -> list[int]:
        truth = slow_reference(sequence.known, drawn.randrange(most + 1), sequence.request.sampling, model)
        return [token if drawn.random() < right else drawn.randrange(vocab) for token in truth]

    return Drafter(guess)
