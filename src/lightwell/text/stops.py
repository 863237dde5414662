"""Stop strings: finding the first of several in a text that arrives a character at a time.

An Aho-Corasick automaton (Aho and Corasick, 1975): its state is the longest end of the text that some stop string
begins with, which is exactly what has to be held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightwell.errors import InvalidRequest


@dataclass(slots=True)
class State:
    """One beginning of a stop string, ``depth`` characters long."""

    depth: int
    next: dict[str, "State"] = field(default_factory=dict)
    fallback: "State | None" = None  # the longest proper end of this beginning that is a beginning too
    stop: str | None = None  # the longest stop string that ends here


class StopStrings:
    """An immutable automaton for a set of stop strings.

    The text stops where a stop string is first complete; of several that end there the longest counts.
    Raises InvalidRequest for an empty stop string, which would stop everywhere.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequest("A stop string is empty: give at least one character.", param="stop")
        self.start = State(0)
        for stop in stops:
            self._insert(stop)
        self._link()

    def advance(self, state: State, character: str) -> State:
        """The state after one more character."""
        while (found := state.next.get(character)) is None:
            if state.fallback is None:
                return state
            state = state.fallback
        return found

    def _insert(self, stop: str) -> None:
        state = self.start
        for depth, character in enumerate(stop, 1):
            state = state.next.setdefault(character, State(depth))
        state.stop = stop

    def _link(self) -> None:
        """Set every state's fallback, shorter beginnings first."""
        waiting = deque([self.start])
        while waiting:
            state = waiting.popleft()
            for character, child in state.next.items():
                child.fallback = self.advance(state.fallback, character) if state.fallback else self.start
                child.stop = child.stop or child.fallback.stop
                waiting.append(child)
