"""Produced: a reading of the event log that knows how many tokens the engine made for each open request.

A client that leaves, and a stop string, end an answer before the engine hears of it; what it made until then is said by
the request's last event, a little later.
"""

import asyncio
from collections.abc import Iterable

from lightwell.events import Event, Finished, Rejected
from lightwell.units import Tokens


class Produced:
    def __init__(self) -> None:
        self._followed: dict[str, asyncio.Future[Tokens]] = {}

    def read(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Finished | Rejected) and (end := self._followed.get(event.request)) and not end.done():
                end.set_result(event.output_tokens if isinstance(event, Finished) else 0)

    def follow(self, request: str) -> asyncio.Future[Tokens]:
        """Known when the request has ended, until ``leave``."""
        self._followed[request] = asyncio.get_running_loop().create_future()
        return self._followed[request]

    def leave(self, requests: Iterable[str]) -> None:
        for request in requests:
            del self._followed[request]
