"""Store: what has to outlive the process, in a SQLite file or in PostgreSQL. This module itself imports neither.

SQLAlchemy takes half a second to import, which a server does not spend before its first token: the database is opened
beside the event loop, by the first who needs it.
"""

import asyncio
import sqlite3
from contextlib import closing
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

    def nothing_is_set(self) -> bool:
        """Whether it holds no rules for requests: no instructions, prices or limits. Asked before a first token, so it
        is answered without opening the database where a glance into the file will do."""
        if self._opening is not None or not self.url.startswith("sqlite:///"):
            return False
        return self.is_new or _is_empty(self.url.removeprefix("sqlite:///"), ("instructions", "prices", "limits"))

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


def _is_empty(path: str, tables: tuple[str, ...]) -> bool:
    """Whether these tables of a SQLite file have no rows; one that is not as expected has to be looked at properly."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as connection:
            return not any(connection.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0] for name in tables)
    except sqlite3.Error:
        return False
