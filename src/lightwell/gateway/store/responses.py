"""Responses whose requests asked to have them kept."""

import msgspec
import sqlalchemy as sql
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.responses.records import Kept
from lightwell.gateway.store.tables import Base, Transaction
from lightwell.units import Seconds


class _Response(Base):
    __tablename__ = "responses"

    id: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    tenant: Mapped[str] = mapped_column(sql.Text, index=True)
    created_at: Mapped[float] = mapped_column(sql.Double, index=True)
    record: Mapped[bytes] = mapped_column(sql.LargeBinary)  # a Kept, as JSON


class ResponseTable:
    """Each tenant sees its own."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def put(self, kept: Kept) -> None:
        """New, or in place of what was kept of it before."""
        async with self._transaction() as session:
            record = msgspec.json.encode(kept)
            await session.merge(_Response(id=kept.id, tenant=kept.tenant, created_at=kept.created_at, record=record))

    async def find(self, tenant: str, name: str) -> Kept | None:
        async with self._transaction() as session:
            mine = sql.select(_Response.record).where(_Response.id == name, _Response.tenant == tenant)
            record = await session.scalar(mine)
            return None if record is None else msgspec.json.decode(record, type=Kept)

    async def delete(self, tenant: str, name: str) -> bool:
        """Whether it was there."""
        return bool(await self._delete(_Response.id == name, _Response.tenant == tenant))

    async def prune(self, before: Seconds) -> int:
        return await self._delete(_Response.created_at < before)

    async def delete_all(self, tenant: str) -> int:
        return await self._delete(_Response.tenant == tenant)

    async def _delete(self, *conditions: sql.ColumnElement[bool]) -> int:
        async with self._transaction() as session:
            return len((await session.scalars(sql.delete(_Response).where(*conditions).returning(_Response.id))).all())
