"""Prompt lookup: what followed the last time that the sequence went like this is guessed to follow again.

Costs nothing to guess, and is often right where an answer quotes its prompt or itself: summaries, code, extraction.
The method is Saxena's ("Prompt Lookup Decoding", 2023); sequences are indexed as they grow, so a look takes no search.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from lightwell.engine.scheduler import Chunk
from lightwell.engine.speculation import MOST_PROPOSED, Acceptance, worthwhile
from lightwell.events import Event, Finished, Speculated
from lightwell.units import Tokens

_SIZES = (4, 2)  # tokens that have to agree; the longer first, as it is right more often


@dataclass(slots=True)
class _Runs:
    """The runs of one size in a sequence: the position after each one's last appearance, and how good a guide it is."""

    size: Tokens
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    acceptance: Acceptance = field(default_factory=Acceptance)


@dataclass(slots=True)
class _History:
    runs: list[_Runs] = field(default_factory=lambda: [_Runs(size) for size in _SIZES])
    indexed: Tokens = 0
    guide: _Runs | None = None  # which runs gave the last guess

    def index(self, known: list[int]) -> None:
        """Take in what is known, but for the last token: its run is the one that is looked for."""
        for end in range(self.indexed + 1, len(known)):
            for runs in self.runs:
                if end >= runs.size:
                    runs.ends[tuple(known[end - runs.size : end])] = end
        self.indexed = max(self.indexed, len(known) - 1)

    def guess(self, known: list[int], sequences: int, most: Tokens) -> list[int]:
        for runs in self.runs:
            if (end := runs.ends.get(tuple(known[-runs.size :]))) is not None:
                self.guide = runs
                if count := worthwhile(runs.acceptance.rate, sequences, most):
                    return _continued(known, end, count)
                runs.acceptance.recover()
        return []


def _continued(known: list[int], start: int, count: Tokens) -> list[int]:
    """The tokens from ``start`` on; where the known ones end the guess repeats itself, as the sequence did."""
    period = len(known) - start
    return [known[start + i % period] for i in range(count)]


class PromptLookup:
    """A Speculator that guesses at most ``most`` tokens."""

    def __init__(self, most: Tokens = MOST_PROPOSED) -> None:
        self._most = most
        self._histories: dict[str, _History] = {}

    def propose(self, chunks: Items[Chunk]) -> list[list[int]]:
        return [self._of(chunk, len(chunks)) if chunk.samples else [] for chunk in chunks]

    def _of(self, chunk: Chunk, sequences: int) -> list[int]:
        history = self._histories.setdefault(chunk.sequence.request.id, _History())
        history.index(chunk.sequence.known)
        return history.guess(chunk.sequence.known, sequences, self._most)

    def observe(self, events: Items[Event]) -> None:
        for event in events:
            match event:
                case Speculated():
                    guide = self._histories[event.request].guide
                    assert guide is not None, "nothing is checked that was not guessed"
                    guide.acceptance.learn(event.proposed, event.accepted)
                case Finished():
                    self._histories.pop(event.request, None)
