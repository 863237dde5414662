"""API keys, by the hash of each."""

import msgspec
import sqlalchemy as sql
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.keys import Key
from lightwell.gateway.store.tables import Base, Transaction
from lightwell.units import Seconds


class _Key(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    hash: Mapped[str] = mapped_column(sql.Text, unique=True)
    prefix: Mapped[str] = mapped_column(sql.Text)
    name: Mapped[str] = mapped_column(sql.Text)
    user: Mapped[str] = mapped_column(sql.Text)
    team: Mapped[str] = mapped_column(sql.Text)
    models: Mapped[list[str] | None] = mapped_column(sql.JSON(none_as_null=True))
    admin: Mapped[bool] = mapped_column(sql.Boolean)
    truncation: Mapped[str | None] = mapped_column(sql.Text)
    created_at: Mapped[float] = mapped_column(sql.Double)
    expires_at: Mapped[float | None] = mapped_column(sql.Double)
    revoked_at: Mapped[float | None] = mapped_column(sql.Double)
    rotated_from: Mapped[str | None] = mapped_column(sql.Text)


_FACTS = [column for column in _Key.__table__.columns if column.name != "hash"]


class KeyTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, key: Key, digest: str) -> None:
        async with self._transaction() as session:
            session.add(_Key(hash=digest, **msgspec.structs.asdict(key)))

    async def find(self, digest: str) -> Key | None:
        return await self._one(_Key.hash == digest)

    async def by_id(self, key: str) -> Key | None:
        return await self._one(_Key.id == key)

    async def all(self) -> list[Key]:
        async with self._transaction() as session:
            rows = await session.execute(sql.select(*_FACTS).order_by(_Key.created_at, _Key.id))
            return [_record(row) for row in rows]

    async def has_admin(self, now: Seconds) -> bool:
        """Whether anybody could make keys."""
        lives = sql.and_(_Key.revoked_at.is_(None), sql.or_(_Key.expires_at.is_(None), _Key.expires_at > now))
        async with self._transaction() as session:
            return await session.scalar(sql.select(_Key.id).where(_Key.admin, lives).limit(1)) is not None

    async def revoke(self, key: str, now: Seconds) -> Key | None:
        """None where there is no such key. One that was revoked stays revoked when it was."""
        async with self._transaction() as session:
            statement = sql.update(_Key).where(_Key.id == key, _Key.revoked_at.is_(None)).values(revoked_at=now)
            await session.execute(statement)
        return await self.by_id(key)

    async def rotate(self, old: Key, new: Key, digest: str, until: Seconds) -> None:
        """The new key is there, and the old one ends then, or when it would have."""
        async with self._transaction() as session:
            session.add(_Key(hash=digest, **msgspec.structs.asdict(new)))
            later = sql.or_(_Key.expires_at.is_(None), _Key.expires_at > until)
            await session.execute(sql.update(_Key).where(_Key.id == old.id, later).values(expires_at=until))

    async def _one(self, condition: sql.ColumnElement[bool]) -> Key | None:
        async with self._transaction() as session:
            row = (await session.execute(sql.select(*_FACTS).where(condition))).first()
            return None if row is None else _record(row)


def _record(row: sql.Row[tuple[object, ...]]) -> Key:
    return msgspec.convert(dict(row._mapping), Key)
