"""Batches and their lines. A line is claimed by one process, answered once, and free again where that one has died."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from lightwell.gateway.batches.records import ENDED, Batch, Line, Status
from lightwell.gateway.store.tables import Base, Transaction
from lightwell.units import Seconds

_AT_ONCE = 500  # lines written or read in one statement


class _Batch(Base):
    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    tenant: Mapped[str] = mapped_column(sql.Text, index=True)
    status: Mapped[str] = mapped_column(sql.Text, index=True)
    created_at: Mapped[float] = mapped_column(sql.Double)
    record: Mapped[bytes] = mapped_column(sql.LargeBinary)  # a Batch, as JSON; its status and counts are kept beside it


class _Line(Base):
    __tablename__ = "batch_lines"

    batch: Mapped[str] = mapped_column(sql.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(sql.Integer, primary_key=True)
    custom_id: Mapped[str] = mapped_column(sql.Text)
    body: Mapped[bytes] = mapped_column(sql.LargeBinary)
    owner: Mapped[str | None] = mapped_column(sql.Text)
    answer: Mapped[bytes | None] = mapped_column(sql.LargeBinary)
    succeeded: Mapped[bool | None] = mapped_column(sql.Boolean)


class _Worker(Base):
    __tablename__ = "batch_workers"

    name: Mapped[str] = mapped_column(sql.Text, primary_key=True)
    alive_until: Mapped[float] = mapped_column(sql.Double)


class BatchTable:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, batch: Batch) -> None:
        async with self._transaction() as session:
            session.add(
                _Batch(
                    id=batch.id,
                    tenant=batch.tenant,
                    status=batch.status,
                    created_at=batch.created_at,
                    record=msgspec.json.encode(batch),
                )
            )

    async def find(self, tenant: str, batch: str) -> Batch | None:
        async with self._transaction() as session:
            row = await session.scalar(sql.select(_Batch).where(_Batch.id == batch, _Batch.tenant == tenant))
            return None if row is None else await _counted(session, row)

    async def page(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """The newest first, those older than the one named ``after``."""
        rows = sql.select(_Batch).where(_Batch.tenant == tenant)
        if after is not None:
            last = sql.select(_Batch.created_at, _Batch.id).where(_Batch.id == after).scalar_subquery()
            rows = rows.where(sql.tuple_(_Batch.created_at, _Batch.id) < last)
        async with self._transaction() as session:
            found = await session.scalars(rows.order_by(_Batch.created_at.desc(), _Batch.id.desc()).limit(limit))
            return [await _counted(session, row) for row in found.all()]

    async def open(self) -> list[Batch]:
        """Of all tenants, those that have not ended, the oldest first."""
        rows = sql.select(_Batch).where(_Batch.status.not_in(ENDED)).order_by(_Batch.created_at, _Batch.id)
        async with self._transaction() as session:
            return [await _counted(session, row) for row in (await session.scalars(rows)).all()]

    async def change(
        self,
        batch: str,
        expected: Sequence[Status],
        change: Callable[[Batch], Batch],
        beside: Callable[[AsyncSession], Awaitable[None]] | None = None,
    ) -> Batch | None:
        """Change one that has a status among these, and do more in the same transaction; None where it has another by
        now, and then nothing is done: of several processes one alone takes each step."""
        async with self._transaction() as session:
            row = await session.scalar(sql.select(_Batch).where(_Batch.id == batch).with_for_update())
            if row is None or row.status not in expected:
                return None
            changed = change(await _counted(session, row))
            taken = sql.update(_Batch).where(_Batch.id == batch, _Batch.status == row.status)
            written = taken.values(status=changed.status, record=msgspec.json.encode(changed)).returning(_Batch.id)
            if await session.scalar(written) is None:
                return None
            if beside is not None:
                await beside(session)
            return changed

    def adding(self, lines: Sequence[Line]) -> Callable[[AsyncSession], Awaitable[None]]:
        """For ``change``: these lines are there from then on."""

        async def add(session: AsyncSession) -> None:
            for start in range(0, len(lines), _AT_ONCE):
                values = [msgspec.structs.asdict(line) for line in lines[start : start + _AT_ONCE]]
                await session.execute(sql.insert(_Line), values)

        return add

    async def claim(self, batch: str, worker: str, count: int, now: Seconds, busy: Sequence[int]) -> list[Line]:
        """Take at most so many lines that nobody answered, and that no living process has. ``busy`` are those that the
        worker itself is about."""
        living = sql.select(_Worker.name).where(_Worker.alive_until > now, _Worker.name != worker)
        free = sql.or_(_Line.owner.is_(None), _Line.owner.not_in(living))
        chosen = (
            sql.select(_Line.number)
            .where(_Line.batch == batch, _Line.answer.is_(None), free, _Line.number.not_in(busy))
            .order_by(_Line.number)
            .limit(count)
            .with_for_update(skip_locked=True)
        )
        statement = (
            sql.update(_Line)
            .where(_Line.batch == batch, _Line.number.in_(chosen.scalar_subquery()))
            .values(owner=worker)
            .returning(_Line.number, _Line.custom_id, _Line.body)
        )
        async with self._transaction() as session:
            rows = (await session.execute(statement)).all()
        return [Line(batch, row.number, row.custom_id, row.body) for row in sorted(rows, key=lambda row: row.number)]

    async def release(self, worker: str) -> None:
        """What this process has and did not answer is for others; it is no worker any more."""
        async with self._transaction() as session:
            await session.execute(
                sql.update(_Line).where(_Line.owner == worker, _Line.answer.is_(None)).values(owner=None)
            )
            await session.execute(sql.delete(_Worker).where(_Worker.name == worker))

    async def answer(self, line: Line, worker: str, answer: bytes, *, succeeded: bool, session: AsyncSession) -> bool:
        """Keep the answer, in the caller's transaction. False where the line is no longer this worker's."""
        statement = (
            sql.update(_Line)
            .where(
                _Line.batch == line.batch,
                _Line.number == line.number,
                _Line.owner == worker,
                _Line.answer.is_(None),
            )
            .values(answer=answer, succeeded=succeeded)
            .returning(_Line.number)
        )
        return await session.scalar(statement) is not None

    async def unanswered(self, batch: str) -> int:
        async with self._transaction() as session:
            count = sql.select(sql.func.count()).where(_Line.batch == batch, _Line.answer.is_(None))
            return await session.scalar(count) or 0

    async def answers(self, batch: str, *, succeeded: bool) -> AsyncIterator[bytes]:
        """In the order of the lines, some hundreds at a time."""
        last = -1
        while True:
            rows = (
                sql.select(_Line.number, _Line.answer)
                .where(_Line.batch == batch, _Line.succeeded.is_(succeeded), _Line.number > last)
                .order_by(_Line.number)
                .limit(_AT_ONCE)
            )
            async with self._transaction() as session:
                found = (await session.execute(rows)).all()
            for row in found:
                last = row.number
                if row.answer is not None:
                    yield row.answer
            if len(found) < _AT_ONCE:
                return

    async def unanswered_lines(self, batch: str) -> list[tuple[int, str]]:
        """Their numbers and ids."""
        rows = sql.select(_Line.number, _Line.custom_id).where(_Line.batch == batch, _Line.answer.is_(None))
        async with self._transaction() as session:
            return [(row.number, row.custom_id) for row in await session.execute(rows.order_by(_Line.number))]

    async def keep_alive(self, worker: str, until: Seconds) -> None:
        async with self._transaction() as session:
            await session.merge(_Worker(name=worker, alive_until=until))


async def _counted(session: AsyncSession, row: _Batch) -> Batch:
    batch = msgspec.json.decode(row.record, type=Batch)
    if row.status in ENDED:
        return batch
    counts = (
        sql.select(_Line.succeeded, sql.func.count().label("lines"))
        .where(_Line.batch == row.id)
        .group_by(_Line.succeeded)
    )
    by_success = {row.succeeded: row.lines for row in await session.execute(counts.group_by(_Line.succeeded))}
    return msgspec.structs.replace(batch, done=by_success.get(True, 0), failed=by_success.get(False, 0))
