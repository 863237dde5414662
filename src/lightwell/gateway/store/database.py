"""Database: an open store. Each kind of thing that is kept has a file beside this one, and a name here."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy as sql
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from lightwell.errors import StartupError
from lightwell.gateway.store.batches import BatchTable
from lightwell.gateway.store.files import FileTable
from lightwell.gateway.store.instructions import InstructionTable
from lightwell.gateway.store.keys import KeyTable
from lightwell.gateway.store.limits import LimitTable
from lightwell.gateway.store.prices import PriceTable
from lightwell.gateway.store.responses import ResponseTable
from lightwell.gateway.store.usage import UsageTable

_BUSY_SECONDS = 30.0  # how long a writer waits for another one in SQLite
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


class Database:
    """Blocks while its tables are brought up to date, so it is made in a thread. Raises StartupError."""

    def __init__(self, url: str) -> None:
        self.url = _driven(url)
        sqlite = self.url.get_backend_name() == "sqlite"
        if sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        self._migrate()
        options: dict[str, Any] = {"connect_args": {"timeout": _BUSY_SECONDS}} if sqlite else {"pool_pre_ping": True}
        self._engine = create_async_engine(self.url, **options)
        if sqlite:
            sql.event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)
        self.instructions = InstructionTable(self.transaction)
        self.keys = KeyTable(self.transaction)
        self.limits = LimitTable(self.transaction)
        self.prices = PriceTable(self.transaction)
        self.responses = ResponseTable(self.transaction)
        self.usage = UsageTable(self.transaction)
        self.files = FileTable(self.transaction)
        self.batches = BatchTable(self.transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """Committed at the end of the block, rolled back where it raises."""
        async with self._sessions.begin() as session:
            yield session

    async def close(self) -> None:
        await self._engine.dispose()

    def _migrate(self) -> None:
        config = alembic.config.Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["url"] = self.url
        logging.getLogger("alembic").setLevel(logging.WARNING)  # which tells each step of what is not asked about
        try:
            alembic.command.upgrade(config, "heads")
        except (SQLAlchemyError, OSError) as error:
            where = self.url.render_as_string(hide_password=True)
            raise StartupError(f"The store {where} cannot be opened: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _driven(url: str) -> URL:
    """The address with the driver that is used here."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StartupError(
            f"The store {url!r} is not an address: give a file, or postgresql://user@host/name."
        ) from None
    backend = parsed.get_backend_name()
    if backend not in _DRIVERS:
        raise StartupError(f"The store {backend!r} is not supported: use SQLite or PostgreSQL.")
    return parsed.set(drivername=_DRIVERS[backend])


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Readers beside one writer, and each commit safe from a crash of the process, if not from one of the machine."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
