"""CachedTokens: a reading of the event log that knows, for each open request, how much of its prompt was cached."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightwell.events import Admitted, Died, Event, Preempted, Reused
from lightwell.units import Tokens


class CachedTokens:
    """Needed because a request that a stop string ends never sees its Finished event, and its usage still says this."""

    def __init__(self) -> None:
        self._open: dict[str, Tokens | None] = {}  # None: not admitted yet
        self._computed_again: set[str] = set()  # what these find in the cache may be their own

    def read(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Admitted(request=request) if request in self._open and not event.resumed:
                    self._open[request] = event.cached_tokens
                case Reused(request=request) if request in self._open and request not in self._computed_again:
                    self._open[request] = self.of(request) + event.tokens
                case Preempted(request=request) if request in self._open:
                    self._computed_again.add(request)
                case Died():
                    self._computed_again.update(self._open)

    @contextmanager
    def watch(self, requests: list[str]) -> Iterator[None]:
        """Follow these requests for the time of the block."""
        self._open.update(dict.fromkeys(requests))
        try:
            yield
        finally:
            for request in requests:
                del self._open[request]
            self._computed_again.difference_update(requests)

    def of(self, request: str) -> Tokens:
        return self._open[request] or 0

    def admitted(self, request: str) -> bool:
        """Whether the engine has taken it up, so that its prompt is computed or found."""
        return self._open[request] is not None
