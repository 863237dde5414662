"""Ledger: a row for every admitted request, written behind its back, and never lost without a word.

Rows wait in memory for the one who writes them, some hundreds at a time. Where the database is away they wait longer,
and once too many wait, new requests do too.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from lightwell.gateway.generate import Generation
from lightwell.gateway.usage import Outcome, Usage
from lightwell.units import Seconds, Tokens

if TYPE_CHECKING:
    from lightwell.gateway.store import Store

_MOST_WAITING = 10_000
_AT_ONCE = 500
_PAUSE_SECONDS: Seconds = 0.2  # rows that come in this time are written together
_RETRY_SECONDS: Seconds = 5.0
_LAST_WORD_SECONDS: Seconds = 2.0  # how long an engine may take to say what it made for a request that left
_FAREWELL_SECONDS: Seconds = 5.0

log = logging.getLogger(__name__)


class Ledger:
    """A stage around every generation. ``run`` writes."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._rows: asyncio.Queue[Usage] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._settling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def around(self, generation: Generation) -> AsyncIterator[None]:
        await self._room.wait()
        generation.row = asyncio.get_running_loop().create_future()
        follow = generation.served.produced.follow
        ends = [follow(answer.request.id) for answer in generation.answers]
        at = time.time()
        outcome: Outcome = "failed"
        try:
            yield
            outcome = "ok"
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "aborted"
            raise
        finally:
            settling = asyncio.create_task(self._settle(generation, at, time.time() - at, outcome, ends))
            self._settling.add(settling)
            settling.add_done_callback(partial(self._settled, generation.row))

    def _settled(self, row: asyncio.Future[Usage], settling: asyncio.Task[None]) -> None:
        self._settling.discard(settling)
        if not row.done():  # whoever waits for it is not to wait for ever
            row.set_exception(RuntimeError("the row of usage could not be made"))
            row.exception()  # often nobody waits: that is no second fault

    async def _settle(
        self,
        generation: Generation,
        at: Seconds,
        seconds: Seconds,
        outcome: Outcome,
        ends: list[asyncio.Future[Tokens]],
    ) -> None:
        counted = [answer.output_tokens for answer in generation.answers]
        await asyncio.wait(ends, timeout=_LAST_WORD_SECONDS)
        generation.served.produced.leave(answer.request.id for answer in generation.answers)
        made = sum(end.result() if end.done() else count for end, count in zip(ends, counted, strict=True))
        row = _row(generation, at, seconds, outcome, made, sum(counted) if outcome == "ok" else made)
        assert generation.row is not None, "it was let in"
        generation.row.set_result(row)
        if generation.keeps_row:
            return
        self._rows.put_nowait(row)
        if self._rows.qsize() >= _MOST_WAITING:
            self._room.clear()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            rows = [await self._rows.get()]
            await asyncio.sleep(_PAUSE_SECONDS)
            while not self._rows.empty() and len(rows) < _AT_ONCE:
                rows.append(self._rows.get_nowait())
            await self._write(rows)
            self._room.set()
            for _ in rows:
                self._rows.task_done()

    async def _write(self, rows: list[Usage]) -> None:
        while True:
            try:
                await (await self._store.database()).usage.add(rows)
                return
            except Exception:
                log.exception("%d rows of usage wait: the store cannot be written", len(rows) + self._rows.qsize())
            await asyncio.sleep(_RETRY_SECONDS)

    async def flush(self) -> None:
        """Until the rows of all requests that have ended are written. Says how many could not be."""
        if self._settling:
            await asyncio.wait(set(self._settling))
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._rows.join()
        except TimeoutError:
            log.error("%d rows of usage are lost: the store could not be written", self._rows.qsize())


def _row(
    generation: Generation,
    at: Seconds,
    seconds: Seconds,
    outcome: Outcome,
    produced: Tokens,
    output: Tokens,
) -> Usage:
    caller, price = generation.caller, generation.price
    prompt, cached = generation.used_prompts()
    first = generation.first_token_at
    return Usage(
        id=generation.id,
        at=at,
        key=caller.key,
        user=caller.user,
        team=caller.team,
        tenant=caller.tenant,
        model=generation.served.names[0],
        api=generation.api,
        batch=generation.batch,
        outcome=outcome,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        produced_tokens=produced,
        seconds=seconds,
        first_token_seconds=None if first is None else first - at,
        input_price=price.input if price else 0,
        cached_price=price.cached_input if price else 0,
        output_price=price.output if price else 0,
        cost=price.cost(prompt, cached, output, batch=generation.batch) if price else 0,
    )
