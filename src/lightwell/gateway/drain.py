"""Drain: how many requests are open, and whether new generations are still let in."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from lightwell.errors import Overloaded
from lightwell.units import Seconds


class Drain:
    def __init__(self) -> None:
        self.draining = False
        self.open = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def begin(self) -> None:
        """From now on nothing new is generated; what runs may finish."""
        self.draining = True

    def admit(self) -> None:
        """Raises Overloaded once draining has begun."""
        if self.draining:
            raise Overloaded("The server is shutting down. Send the request to another one, or again in a moment.")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts one request as open for the time of the block."""
        self.open += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.open -= 1
            if self.open == 0:
                self._empty.set()

    async def drained(self, timeout_seconds: Seconds) -> bool:
        """Wait until no request is open; False where that takes longer than the timeout."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True
