"""The price sheet: what a model's tokens cost."""

import msgspec
import sqlalchemy as sql
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.prices import Price
from lightwell.gateway.store.tables import Base, Transaction


class _Price(Base):
    __tablename__ = "prices"

    model: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    input: Mapped[int] = mapped_column(sql.BigInteger)
    cached_input: Mapped[int] = mapped_column(sql.BigInteger)
    output: Mapped[int] = mapped_column(sql.BigInteger)
    batch_discount: Mapped[float] = mapped_column(sql.Double)


class PriceTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def all(self) -> dict[str, Price]:
        async with self._transaction() as session:
            rows = await session.scalars(sql.select(_Price))
            return {row.model: Price(row.input, row.cached_input, row.output, row.batch_discount) for row in rows}

    async def put(self, model: str, price: Price) -> None:
        async with self._transaction() as session:
            await session.merge(_Price(model=model, **msgspec.structs.asdict(price)))

    async def delete(self, model: str) -> bool:
        """Whether it had one."""
        async with self._transaction() as session:
            statement = sql.delete(_Price).where(_Price.model == model).returning(_Price.model)
            return await session.scalar(statement) is not None
