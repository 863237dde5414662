"""Store: what has to outlive the process, in a SQLite file or in PostgreSQL. This module itself imports neither.

SQLAlchemy takes half a second to import, which a server does not spend before its first token: the database is opened
beside the event loop, by the first who needs it.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightwell.gateway.store.database import Database


class Store:
    """``url``: such as ``postgresql://user@host/name``, ``sqlite:///file.db``, or the path of a SQLite file."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url) if "://" in str(url) else f"sqlite:///{url}"
        self._opening: asyncio.Task[Database] | None = None

    @property
    def is_new(self) -> bool:
        """Nothing was ever stored in it, as far as can be told without opening it."""
        path = self.url.removeprefix("sqlite:///")
        return self._opening is None and path != self.url and not Path(path).exists()

    async def database(self) -> "Database":
        """Open, with its tables up to date. Raises StartupError where it cannot be: a later call tries again."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._opening is not None:
            await (await self._opening).close()
            self._opening = None

    async def _open(self) -> "Database":
        def opened() -> "Database":
            from lightwell.gateway.store.database import Database

            return Database(self.url)

        return await asyncio.to_thread(opened)
