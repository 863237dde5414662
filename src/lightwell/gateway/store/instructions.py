"""Stored instructions: a text for each subject, such as ``key:ID``, ``team:NAME`` or ``model:NAME``."""

import sqlalchemy as sql
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.store.tables import Base, Transaction


class _Instructions(Base):
    __tablename__ = "instructions"

    subject: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    text: Mapped[str] = mapped_column(sql.Text)


class InstructionTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def all(self) -> dict[str, str]:
        async with self._transaction() as session:
            rows = await session.execute(sql.select(_Instructions.subject, _Instructions.text))
            return {row.subject: row.text for row in rows}

    async def put(self, subject: str, text: str) -> None:
        async with self._transaction() as session:
            await session.merge(_Instructions(subject=subject, text=text))

    async def delete(self, subject: str) -> bool:
        """Whether there were any."""
        async with self._transaction() as session:
            statement = sql.delete(_Instructions).where(_Instructions.subject == subject)
            return bool((await session.execute(statement.returning(_Instructions.subject))).all())
