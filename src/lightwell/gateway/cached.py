"""CachedTokens: a reading of the event log that knows, for each open request, how much of its prompt was cached."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightwell.events import Admitted, Event
from lightwell.units import Tokens


class CachedTokens:
    """Needed because a request that a stop string ends never sees its Finished event, and its usage still says this."""

    def __init__(self) -> None:
        self._open: dict[str, Tokens] = {}

    def read(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Admitted) and not event.resumed and event.request in self._open:
                self._open[event.request] = event.cached_tokens

    @contextmanager
    def watch(self, requests: list[str]) -> Iterator[None]:
        """Follow these requests for the time of the block."""
        self._open.update(dict.fromkeys(requests, 0))
        try:
            yield
        finally:
            for request in requests:
                del self._open[request]

    def of(self, request: str) -> Tokens:
        return self._open[request]
