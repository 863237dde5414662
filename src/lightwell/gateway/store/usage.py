"""The ledger's rows, and their sums."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.store.tables import Base, Transaction
from lightwell.gateway.usage import Sum, Usage
from lightwell.units import Seconds

_DAY_SECONDS = 86400


class _Usage(Base):
    __tablename__ = "usage"

    row: Mapped[int] = mapped_column(sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True)
    id: Mapped[str] = mapped_column(sql.Text, index=True)
    at: Mapped[float] = mapped_column(sql.Double, index=True)
    key: Mapped[str] = mapped_column(sql.Text)
    user: Mapped[str] = mapped_column(sql.Text)
    team: Mapped[str] = mapped_column(sql.Text)
    tenant: Mapped[str] = mapped_column(sql.Text)
    model: Mapped[str] = mapped_column(sql.Text)
    api: Mapped[str] = mapped_column(sql.Text)
    batch: Mapped[bool] = mapped_column(sql.Boolean)
    outcome: Mapped[str] = mapped_column(sql.Text)
    prompt_tokens: Mapped[int] = mapped_column(sql.BigInteger)
    cached_tokens: Mapped[int] = mapped_column(sql.BigInteger)
    output_tokens: Mapped[int] = mapped_column(sql.BigInteger)
    produced_tokens: Mapped[int] = mapped_column(sql.BigInteger)
    seconds: Mapped[float] = mapped_column(sql.Double)
    first_token_seconds: Mapped[float | None] = mapped_column(sql.Double)
    input_price: Mapped[int] = mapped_column(sql.BigInteger)
    cached_price: Mapped[int] = mapped_column(sql.BigInteger)
    output_price: Mapped[int] = mapped_column(sql.BigInteger)
    cost: Mapped[int] = mapped_column(sql.BigInteger)


class UsageTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, rows: Sequence[Usage], session: AsyncSession | None = None) -> None:
        """In the caller's transaction, or in one of its own."""
        values = [msgspec.structs.asdict(row) for row in rows]
        if session is not None:
            await session.execute(sql.insert(_Usage), values)
            return
        async with self._transaction() as own:
            await own.execute(sql.insert(_Usage), values)

    async def find(self, answer: str) -> Usage | None:
        columns = [column for column in _Usage.__table__.columns if column.name != "row"]
        async with self._transaction() as session:
            row = (await session.execute(sql.select(*columns).where(_Usage.id == answer))).first()
            return None if row is None else msgspec.convert(dict(row._mapping), Usage)

    async def sums(
        self, by: Sequence[str], *, since: Seconds = 0, until: Seconds | None = None, tenant: str | None = None
    ) -> list[Sum]:
        """Grouped by these of usage.GROUPS, in their order."""
        day = sql.cast(sql.func.floor(_Usage.at / _DAY_SECONDS), sql.BigInteger)
        groups = [(day if name == "day" else _Usage.__table__.columns[name]).label(name) for name in by]
        totals = [
            sql.func.count().label("requests"),
            sql.func.sum(sql.case((_Usage.outcome == "ok", 0), else_=1)).label("failed"),
            *(_total(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens", "cost")),
        ]
        rows = sql.select(*groups, *totals).where(_Usage.at >= since).group_by(*groups).order_by(*groups)
        if until is not None:
            rows = rows.where(_Usage.at < until)
        if tenant is not None:
            rows = rows.where(_Usage.tenant == tenant)
        async with self._transaction() as session:
            found = [dict(row._mapping) for row in await session.execute(rows)]
        return [_sum(row) for row in found if row["requests"]]

    async def spent(self, subject: str, since: Seconds) -> int:
        """What a subject such as ``key:ID``, ``team:NAME`` or ``model:NAME`` cost, in picodollars. Whoever has no key
        is a key by the user's name."""
        kind, _, name = subject.partition(":")
        own = sql.or_(_Usage.key == name, sql.and_(_Usage.key == "", _Usage.user == name))
        of = own if kind == "key" else _Usage.__table__.columns[kind] == name
        async with self._transaction() as session:
            total = sql.select(sql.func.sum(_Usage.cost)).where(_Usage.at >= since, of)
            return int(await session.scalar(total) or 0)

    async def prune(self, before: Seconds) -> int:
        return await self._delete(_Usage.at < before)

    async def delete(self, tenant: str) -> int:
        return await self._delete(_Usage.tenant == tenant)

    async def _delete(self, condition: sql.ColumnElement[bool]) -> int:
        async with self._transaction() as session:
            return len((await session.scalars(sql.delete(_Usage).where(condition).returning(_Usage.row))).all())


def _total(name: str) -> sql.Label[int]:
    return sql.cast(sql.func.sum(_Usage.__table__.columns[name]), sql.BigInteger).label(name)


def _sum(row: dict[str, object]) -> Sum:
    if "day" in row:
        row["day"] = _date(int(str(row["day"])))
    return msgspec.convert(row, Sum)


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_SECONDS, UTC).strftime("%Y-%m-%d")
