"""Limits, by subject."""

import msgspec
import sqlalchemy as sql
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.limits import Limits
from lightwell.gateway.store.tables import Base, Transaction


class _Limits(Base):
    __tablename__ = "limits"

    subject: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    limits: Mapped[dict[str, float]] = mapped_column(sql.JSON)


class LimitTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def all(self) -> dict[str, Limits]:
        async with self._transaction() as session:
            rows = await session.scalars(sql.select(_Limits))
            return {row.subject: msgspec.convert(row.limits, Limits) for row in rows}

    async def put(self, subject: str, limits: Limits) -> None:
        async with self._transaction() as session:
            await session.merge(_Limits(subject=subject, limits=msgspec.to_builtins(limits)))

    async def delete(self, subject: str) -> bool:
        """Whether it had any."""
        async with self._transaction() as session:
            statement = sql.delete(_Limits).where(_Limits.subject == subject).returning(_Limits.subject)
            return await session.scalar(statement) is not None
