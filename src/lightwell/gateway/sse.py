"""Server-sent events: a generation as a stream, and the response that sends it while its client listens."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import chain, repeat

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightwell.errors import LightwellError, Overloaded
from lightwell.gateway.answer import Delta
from lightwell.gateway.disconnect import ClientGone, unless_gone
from lightwell.gateway.failures import STOPPED, as_lightwell_error, error_body
from lightwell.gateway.generate import Generation
from lightwell.gateway.shapes import Json, Shape
from lightwell.units import Seconds

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
PING_SECONDS: Seconds = 15.0


async def events(
    generation: Generation, shape: Shape, deltas: AsyncGenerator[list[Delta], None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream; those that are ready together come as one piece of bytes. Ends with ``[DONE]``."""
    head, tail = _frame(generation, shape)
    tails = chain([_with_beside(tail, shape.beside(generation))], repeat(tail))
    async with aclosing(deltas):
        async for batch in deltas:
            chunks = [chunk for delta in batch for chunk in shape.chunks(delta)]
            yield b"".join([head + _encode(chunk) + next(tails) for chunk in chunks])
    if generation.include_usage:
        yield head[:-1] + b'[],"usage":' + _encode(generation.usage) + b"}\n\n"
    yield _DONE


def _frame(generation: Generation, shape: Shape) -> tuple[bytes, bytes]:
    """What every event of a stream begins and ends with, around its one choice."""
    common = {
        "id": generation.id,
        "object": shape.chunk_object,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.served.fingerprint(),
    }
    usage = b',"usage":null' if generation.include_usage else b""
    return b"data: " + _encode(common)[:-1] + b',"choices":[', b"]" + usage + b"}\n\n"


def _with_beside(tail: bytes, beside: Json) -> bytes:
    """The end of the first event, which also has what goes beside all choices."""
    return b"]," + _encode(beside)[1:-1] + tail[1:] if beside else tail


def error_event(error: LightwellError) -> bytes:
    return b"data: " + _encode(error_body(error, "")) + b"\n\n"


async def stream_response(
    request: Request,
    generation: Generation,
    pieces: AsyncGenerator[bytes, None],
    write_error: Callable[[LightwellError], bytes] = error_event,
    media_type: str = "text/event-stream",
    ping: bytes = b": ping\n\n",
) -> Response:
    """The first piece is awaited here for a while, so an error until then has its own status, and the headers are
    complete. A later error ends the stream with one event, as ``write_error`` writes it. ``ping`` is sent in silence,
    so that no proxy takes the connection for a dead one."""
    first = asyncio.ensure_future(anext(pieces))
    try:
        await unless_gone(request.receive, asyncio.wait({first}, timeout=PING_SECONDS))
    except BaseException:
        first.cancel()
        await asyncio.wait({first})
        raise
    if first.done():
        first.result()
    writing = _Writing(first, pieces, write_error, ping, request.state.request_id)
    return _EventStream(writing, generation.headers, media_type)


@dataclass
class _Writing:
    """What a stream has to say, and how."""

    first: asyncio.Future[bytes]
    pieces: AsyncGenerator[bytes, None]
    write_error: Callable[[LightwellError], bytes]
    ping: bytes
    request_id: str


class _EventStream(Response):
    """Sends a stream of events and closes it at once when the client leaves."""

    def __init__(self, writing: _Writing, headers: dict[str, str], media_type: str) -> None:
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=unbuffered | headers, media_type=media_type)
        del self.headers["content-length"]
        self._writing = writing
        self._sent_at = time.monotonic() if writing.first.done() else -PING_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinging = None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            pinging = asyncio.create_task(self._ping(send))
            with suppress(ClientGone):
                await unless_gone(receive, self._send_all(send))
        finally:
            if pinging is not None:
                pinging.cancel()
            await _closed(self._writing)

    async def _send_all(self, send: Send) -> None:
        writing = self._writing
        try:
            await self._send(send, await writing.first)
            async for piece in writing.pieces:
                await self._send(send, piece)
        except Exception as error:
            await self._send(send, writing.write_error(as_lightwell_error(error, writing.request_id)))
        except asyncio.CancelledError:
            # Either the client has gone, and nothing is sent any more, or the server stops.
            await self._send(send, writing.write_error(Overloaded(STOPPED)))
            raise
        finally:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        while self._writing.ping:
            if time.monotonic() - self._sent_at >= PING_SECONDS:
                await self._send(send, self._writing.ping)
            await asyncio.sleep(PING_SECONDS)

    async def _send(self, send: Send, body: bytes) -> None:
        if body:
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _closed(writing: _Writing) -> None:
    if not writing.first.done():
        writing.first.cancel()
        await asyncio.wait({writing.first})
    await writing.pieces.aclose()
