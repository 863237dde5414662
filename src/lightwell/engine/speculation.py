"""Speculation: guesses at a sequence's next tokens, checked in one step, and how many are worth guessing.

At each position the model draws what it would have drawn alone, and a guess counts when it is that token. So whatever a
speculator says, it changes the speed and never the answer.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from lightwell.engine.scheduler import Chunk
from lightwell.events import Event
from lightwell.units import Tokens

MOST_PROPOSED: Tokens = 8

# What one more token adds to a decoding step of one sequence, as a share of that step: 0.13 to 0.22 for 2 to 8 tokens
# of SmolLM2-135M on two cores of a Zen 3. Where the arithmetic binds rather than the memory it is more.
_COST_OF_A_TOKEN = 0.2

_PRIOR_ACCEPTED, _PRIOR_TRIED = 1.2, 2.0  # before anything is known: worth a try
_MEMORY = 0.9  # what a trial counts after one more; about the last ten count
_RECOVERY = 0.98  # of what is remembered, each time that a guess was not worth its cost: after some it is tried again


class Speculator(Protocol):
    def propose(self, chunks: Items[Chunk]) -> list[list[int]]:
        """Guesses at what follows each chunk's last token; an empty list for none. They need not be any good."""
        ...

    def observe(self, events: Items[Event]) -> None:
        """What became of a step: Speculated says how many guesses were right, Finished that a request is over."""
        ...


@dataclass(slots=True)
class Acceptance:
    """How often a guess was right lately, for one sequence: weights of trials that fade."""

    accepted: float = 0.0
    tried: float = 0.0

    @property
    def rate(self) -> float:
        return (self.accepted + _PRIOR_ACCEPTED) / (self.tried + _PRIOR_TRIED)

    def learn(self, proposed: Tokens, accepted: Tokens) -> None:
        """The first wrong guess was tried as well; those after it were not."""
        fade = _MEMORY ** (tried := min(accepted + 1, proposed))
        self.accepted = self.accepted * fade + accepted
        self.tried = self.tried * fade + tried

    def recover(self) -> None:
        self.accepted *= _RECOVERY
        self.tried *= _RECOVERY


def worthwhile(rate: float, sequences: int, most: Tokens = MOST_PROPOSED, cost_of_guessing: float = 0.0) -> Tokens:
    """How many guesses give the most tokens a second, where each is right with probability ``rate`` if those before it
    are (Leviathan, Kalman & Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, section
    3.3). In a batch of ``sequences`` the step is longer already, but a guess pays for one of them only.
    ``cost_of_guessing`` is the time to make one guess for each of them, as a share of that step."""
    checking = _COST_OF_A_TOKEN * sequences / (1 + _COST_OF_A_TOKEN * (sequences - 1))
    best, most_speed = 0, 1.0
    expected = power = 1.0
    for guesses in range(1, most + 1):
        power *= rate
        expected += power
        if (speed := expected / (1 + (checking + cost_of_guessing) * guesses)) > most_speed:
            best, most_speed = guesses, speed
    return best
