"""Server-sent events: a generation as a stream, and the response that sends it while its client listens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
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

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


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
) -> Response:
    """The first piece is awaited here, so an error until then has its own status, and the headers are complete. A later
    error ends the stream with one event, as ``write_error`` writes it."""
    first = await unless_gone(request.receive, anext(pieces))
    return _EventStream(first, pieces, generation.headers, request.state.request_id, write_error, media_type)


class _EventStream(Response):
    """Sends a stream of events and closes it at once when the client leaves."""

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        headers: dict[str, str],
        request_id: str,
        write_error: Callable[[LightwellError], bytes],
        media_type: str,
    ) -> None:
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=unbuffered | headers, media_type=media_type)
        del self.headers["content-length"]
        self._first, self._pieces = first, pieces
        self._request_id, self._write_error = request_id, write_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with suppress(ClientGone):
                await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        try:
            await _send(send, self._first)
            async for piece in self._pieces:
                await _send(send, piece)
        except Exception as error:
            await _send(send, self._write_error(as_lightwell_error(error, self._request_id)))
        except asyncio.CancelledError:
            # Either the client has gone, and nothing is sent any more, or the server stops.
            await _send(send, self._write_error(Overloaded(STOPPED)))
            raise
        finally:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
