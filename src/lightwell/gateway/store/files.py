"""Files that clients sent, and those that batches write, in parts of a megabyte."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import msgspec
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.batches.records import File
from lightwell.gateway.store.tables import Base, Transaction
from lightwell.units import Seconds

_PART_BYTES = 1 << 20


class _File(Base):
    __tablename__ = "files"

    id: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    tenant: Mapped[str] = mapped_column(sql.Text, index=True)
    purpose: Mapped[str] = mapped_column(sql.Text)
    name: Mapped[str] = mapped_column(sql.Text)
    bytes: Mapped[int] = mapped_column(sql.BigInteger)
    created_at: Mapped[float] = mapped_column(sql.Double)
    expires_at: Mapped[float | None] = mapped_column(sql.Double)


class _Part(Base):
    __tablename__ = "file_parts"

    file: Mapped[str] = mapped_column(sql.ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(sql.Integer, primary_key=True)
    data: Mapped[bytes] = mapped_column(sql.LargeBinary)


class FileTable:
    """Each tenant sees its own. What has expired is not found any more."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, file: File, content: Iterable[bytes]) -> None:
        async with self._transaction() as session:
            await self.adding([(file, content)])(session)

    def adding(self, files: Sequence[tuple[File, Iterable[bytes]]]) -> Callable[[AsyncSession], Awaitable[None]]:
        """As a part of a larger transaction."""

        async def add(session: AsyncSession) -> None:
            for file, content in files:
                session.add(_File(**msgspec.structs.asdict(file)))
                await session.flush()
                for number, data in enumerate(_parts(content)):
                    await session.execute(sql.insert(_Part).values(file=file.id, number=number, data=data))

        return add

    async def find(self, tenant: str, file: str, now: Seconds) -> File | None:
        async with self._transaction() as session:
            row = await session.scalar(sql.select(_File).where(_File.id == file, *_visible(tenant, now)))
            return None if row is None else _record(row)

    async def page(
        self, tenant: str, now: Seconds, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[File]:
        """Those after the one named ``after``, in the order of their making."""
        rows = sql.select(_File).where(*_visible(tenant, now))
        if purpose is not None:
            rows = rows.where(_File.purpose == purpose)
        key = sql.tuple_(_File.created_at, _File.id)
        if after is not None:
            last = sql.select(_File.created_at, _File.id).where(_File.id == after).scalar_subquery()
            rows = rows.where(key < last if newest_first else key > last)
        order = (_File.created_at.desc(), _File.id.desc()) if newest_first else (_File.created_at, _File.id)
        async with self._transaction() as session:
            return [_record(row) for row in await session.scalars(rows.order_by(*order).limit(limit))]

    async def delete(self, tenant: str, file: str) -> bool:
        """Whether it was there."""
        async with self._transaction() as session:
            statement = sql.delete(_File).where(_File.id == file, _File.tenant == tenant).returning(_File.id)
            return await session.scalar(statement) is not None

    async def delete_expired(self, now: Seconds) -> int:
        async with self._transaction() as session:
            statement = sql.delete(_File).where(_File.expires_at <= now).returning(_File.id)
            return len((await session.scalars(statement)).all())

    async def content(self, file: str) -> AsyncIterator[bytes]:
        """Part by part, each read when it is asked for."""
        number = 0
        while True:
            async with self._transaction() as session:
                data = await session.scalar(sql.select(_Part.data).where(_Part.file == file, _Part.number == number))
            if data is None:
                return
            yield data
            number += 1


def _parts(content: Iterable[bytes]) -> Iterable[bytes]:
    held = bytearray()
    for piece in content:
        held += piece
        while len(held) >= _PART_BYTES:
            yield bytes(held[:_PART_BYTES])
            del held[:_PART_BYTES]
    if held:
        yield bytes(held)


def _visible(tenant: str, now: Seconds) -> list[sql.ColumnElement[bool]]:
    return [_File.tenant == tenant, sql.or_(_File.expires_at.is_(None), _File.expires_at > now)]


def _record(row: _File) -> File:
    return File(row.id, row.tenant, row.purpose, row.name, row.bytes, row.created_at, row.expires_at)
