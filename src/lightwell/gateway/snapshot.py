"""Snapshot: rules of the store as each request needs them, read again when they are a second old."""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from lightwell.units import Seconds

if TYPE_CHECKING:
    from lightwell.gateway.store import Store
    from lightwell.gateway.store.database import Database

Rules = TypeVar("Rules")
FRESH_SECONDS: Seconds = 1.0  # how soon a change made by another process is seen


class Snapshot(Generic[Rules]):
    def __init__(self, store: "Store", read: "Callable[[Database], Awaitable[Rules]]", none: Rules) -> None:
        """``none``: the rules of a store in which nothing was set."""
        self._store, self._read, self._none = store, read, none
        self._rules = none
        self._read_at = -FRESH_SECONDS

    async def rules(self) -> Rules:
        if self._store.nothing_is_set():
            return self._none
        if time.monotonic() - self._read_at >= FRESH_SECONDS:
            self._rules = await self._read(await self._store.database())
            self._read_at = time.monotonic()
        return self._rules

    def forget(self) -> None:
        """Read them again before the next request: something was changed here."""
        self._read_at = -FRESH_SECONDS
