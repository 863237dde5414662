"""BatchRunner: takes the lines of open batches, some at a time, and keeps each answer once.

Several processes may run over one store. A line belongs to the one that claimed it, as long as that one says that it
lives; what a killed one had is taken by the next.
"""

import asyncio
import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import msgspec

from lightwell.errors import LightwellError
from lightwell.gateway.batches.files_api import new_file_id
from lightwell.gateway.batches.lines import ENDPOINTS, read_lines
from lightwell.gateway.batches.records import Batch, File, Line, Status
from lightwell.gateway.caller import Caller
from lightwell.gateway.failures import as_lightwell_error, error_body
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.units import Seconds

if TYPE_CHECKING:
    from lightwell.gateway.store.database import Database

_LOOK_SECONDS: Seconds = 5.0  # how often for what another process was asked, or has left
_LIFE_SECONDS: Seconds = 15.0  # after which a silent process counts as dead
_RETRY_SECONDS: Seconds = 1.0  # after a refusal for now; doubled up to the most
_MOST_RETRY_SECONDS: Seconds = 30.0
_FOR_NOW = (429, 503)
_COPY_BYTES = 1 << 20

log = logging.getLogger(__name__)


class BatchRunner:
    """``at_once``: the most lines in the engine."""

    def __init__(self, gateway: Gateway, at_once: int) -> None:
        self._gateway, self._at_once = gateway, at_once
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled; then what was begun and not answered is for others."""
        alive = asyncio.create_task(self._stay_alive())
        try:
            while True:
                await self._look()
                await self._wait()
        finally:
            alive.cancel()
            await self._stop()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._gateway.batch_work.wait()
        self._gateway.batch_work.clear()

    async def _look(self) -> None:
        """One step for every open batch. What fails is tried again at the next look: the database may be away."""
        if self._gateway.store.is_new or self._gateway.drain.draining:
            return
        try:
            database = await self._gateway.store.database()
            for batch in await database.batches.open():
                await self._advance(database, batch)
        except Exception:
            log.exception("batches cannot go on for now")

    async def _stay_alive(self) -> None:
        while True:
            if self._running:
                try:
                    database = await self._gateway.store.database()
                    await database.batches.keep_alive(self._name, time.time() + _LIFE_SECONDS)
                except Exception:
                    log.exception("the batch worker cannot say that it lives")
            await asyncio.sleep(_LIFE_SECONDS / 3)

    async def _stop(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await (await self._gateway.store.database()).batches.release(self._name)

    async def _advance(self, database: "Database", batch: Batch) -> None:
        match batch.status:
            case "validating":
                await self._validate(database, batch)
            case "in_progress" if time.time() >= batch.expires_at:
                await self._cut(database, batch, "expired")
            case "in_progress":
                await self._claim(database, batch)
            case "cancelling":
                await self._cut(database, batch, "cancelled")
            case "finalizing":
                await self._finish(database, batch, "finalizing", "completed")

    async def _validate(self, database: "Database", batch: Batch) -> None:
        lines, errors = await read_lines(batch.id, batch.endpoint, database.files.content(batch.input_file))
        status: Status = "failed" if errors else "in_progress"

        def begun(now: Batch) -> Batch:
            times = now.times | {status: time.time()}
            return msgspec.structs.replace(now, status=status, times=times, errors=errors, total=len(lines))

        added = None if errors else database.batches.adding(lines)
        if await database.batches.change(batch.id, ("validating",), begun, added):
            self._gateway.batch_work.set()

    async def _claim(self, database: "Database", batch: Batch) -> None:
        free = self._at_once - len(self._running)
        if free > 0:
            await database.batches.keep_alive(self._name, time.time() + _LIFE_SECONDS)
            busy = [number for of, number in self._running if of == batch.id]
            for line in await database.batches.claim(batch.id, self._name, free, time.time(), busy):
                key = (batch.id, line.number)
                self._running[key] = asyncio.create_task(self._answer(database, batch, line))
                self._running[key].add_done_callback(partial(self._done, key))
        if not await database.batches.unanswered(batch.id):
            await database.batches.change(batch.id, ("in_progress",), lambda now: _in_status(now, "finalizing"))
            self._gateway.batch_work.set()

    def _done(self, key: tuple[str, int], _: asyncio.Task[None]) -> None:
        del self._running[key]
        self._gateway.batch_work.set()

    async def _answer(self, database: "Database", batch: Batch, line: Line) -> None:
        """Answer the line and keep that. One that cannot be kept stays unanswered, and is taken again."""
        try:
            asked: list[Generation] = []
            succeeded, response = await self._response(batch, line, asked)
            answer = msgspec.json.encode(_output(line, response, None)) + b"\n"
            used = [await each.row for each in asked if each.row is not None]
            async with database.transaction() as session:
                await database.batches.answer(line, self._name, answer, succeeded=succeeded, session=session)
                if used:
                    await database.usage.add(used, session)
        except Exception:
            log.exception("line %d of %s is left for another try", line.number + 1, batch.id)

    async def _response(self, batch: Batch, line: Line, asked: list[Generation]) -> tuple[bool, dict[str, Any]]:
        """As its endpoint would answer. What is refused for now is asked again. ``asked`` gets what
        has rows of the ledger, to be written together with the answer: that adds up, whenever the server is killed."""
        caller, wait = msgspec.json.decode(batch.caller, type=Caller), _RETRY_SECONDS
        request_id = f"req_{uuid.uuid4().hex}"
        while True:
            try:
                body = await ENDPOINTS[batch.endpoint](self._gateway, caller, line.body, partial(_as_batch, asked))
                return True, {"status_code": 200, "request_id": request_id, "body": body}
            except Exception as error:
                known = as_lightwell_error(error, request_id)
                if not _for_now(known):
                    body = error_body(known, batch.endpoint)
                    return False, {"status_code": known.status, "request_id": request_id, "body": body}
            await asyncio.sleep(wait)
            wait = min(2 * wait, _MOST_RETRY_SECONDS)

    async def _cut(self, database: "Database", batch: Batch, status: Status) -> None:
        """End it with the answers that there are. Lines that others are answering come too late."""
        mine = [task for (of, _), task in self._running.items() if of == batch.id]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine)
        await self._finish(database, batch, batch.status, status)

    async def _finish(self, database: "Database", batch: Batch, expected: Status, status: Status) -> None:
        left = [_left(number, name, status) for number, name in await database.batches.unanswered_lines(batch.id)]
        with tempfile.SpooledTemporaryFile(_COPY_BYTES) as output, tempfile.SpooledTemporaryFile(_COPY_BYTES) as errors:
            await _copy(database.batches.answers(batch.id, succeeded=True), output)
            await _copy(database.batches.answers(batch.id, succeeded=False), errors)
            errors.writelines(left)
            written = _file(batch, "output", output), _file(batch, "errors", errors)

            def finished(now: Batch) -> Batch:
                names = [None if file is None else file.id for file in written]
                failed = now.total - now.done
                return msgspec.structs.replace(
                    _in_status(now, status), output_file=names[0], error_file=names[1], failed=failed
                )

            contents = [(file, _pieces(source)) for file, source in zip(written, (output, errors), strict=True) if file]
            await database.batches.change(batch.id, (expected,), finished, database.files.adding(contents))


def _as_batch(asked: list[Generation], generation: Generation) -> None:
    generation.batch = generation.keeps_row = True
    asked.append(generation)


def _for_now(error: LightwellError) -> bool:
    return error.status in _FOR_NOW


def _in_status(batch: Batch, status: Status) -> Batch:
    return msgspec.structs.replace(batch, status=status, times=batch.times | {status: time.time()})


def _output(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
    name = f"batch_req_{line.batch.removeprefix('batch_')}_{line.number}"
    return {"id": name, "custom_id": line.custom_id, "response": response, "error": error}


def _left(number: int, custom_id: str, status: Status) -> bytes:
    """A line that was not answered in time."""
    error = {"code": f"batch_{status}", "message": f"The batch was {status} before this request was answered."}
    return msgspec.json.encode(_output(Line("", number, custom_id, b""), None, error)) + b"\n"


async def _copy(pieces: AsyncIterator[bytes], file: IO[bytes]) -> None:
    async for piece in pieces:
        file.write(piece)


def _file(batch: Batch, what: str, content: IO[bytes]) -> File | None:
    size, now = content.tell(), time.time()
    if not size:
        return None
    expiry = None if batch.output_seconds is None else now + batch.output_seconds
    return File(new_file_id(), batch.tenant, "batch_output", f"{batch.id}_{what}.jsonl", size, now, expiry)


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while piece := content.read(_COPY_BYTES):
        yield piece
