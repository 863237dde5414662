"""Server-sent events: a generation as a stream, and the response that sends it while its client listens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import chain, repeat

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightwell.errors import Overloaded
from lightwell.gateway.answer import Delta
from lightwell.gateway.disconnect import ClientGone, unless_gone
from lightwell.gateway.failures import STOPPED, as_lightwell_error, error_object
from lightwell.gateway.generate import Generation
from lightwell.gateway.shapes import Json, Shape

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


async def events(
    generation: Generation, shape: Shape, fingerprint: str, deltas: AsyncGenerator[list[Delta], None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream; those that are ready together come as one piece of bytes. Ends with ``[DONE]``."""
    head, tail = _frame(generation, shape, fingerprint)
    tails = chain([_with_beside(tail, shape.beside(generation))], repeat(tail))
    async with aclosing(deltas):
        async for batch in deltas:
            chunks = [chunk for delta in batch for chunk in shape.chunks(delta)]
            yield b"".join([head + _encode(chunk) + next(tails) for chunk in chunks])
    if generation.include_usage:
        yield head[:-1] + b'[],"usage":' + _encode(generation.usage) + b"}\n\n"
    yield _DONE


def _frame(generation: Generation, shape: Shape, fingerprint: str) -> tuple[bytes, bytes]:
    """What every event of a stream begins and ends with, around its one choice."""
    common = {
        "id": generation.id,
        "object": shape.chunk_object,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": fingerprint,
    }
    usage = b',"usage":null' if generation.include_usage else b""
    return b"data: " + _encode(common)[:-1] + b',"choices":[', b"]" + usage + b"}\n\n"


def _with_beside(tail: bytes, beside: Json) -> bytes:
    """The end of the first event, which also has what goes beside all choices."""
    return b"]," + _encode(beside)[1:-1] + tail[1:] if beside else tail


class EventStream(Response):
    """Sends a stream of events and closes it at once when the client leaves.

    The first piece is awaited before the status goes out, so an error until then has its own status. A later one ends
    the stream with one error event and no ``[DONE]``.
    """

    media_type = "text/event-stream"  # Starlette adds the charset

    def __init__(self, pieces: AsyncGenerator[bytes, None], headers: dict[str, str], request_id: str) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"} | headers)
        del self.headers["content-length"]
        self._pieces, self._request_id = pieces, request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            first = await unless_gone(receive, anext(self._pieces))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with suppress(ClientGone):
                await unless_gone(receive, self._send_all(first, send))

    async def _send_all(self, first: bytes, send: Send) -> None:
        try:
            await _send(send, first)
            async for piece in self._pieces:
                await _send(send, piece)
        except Exception as error:
            await _send(send, self._error_event(error))
        except asyncio.CancelledError:
            # Either the client has gone, and nothing is sent any more, or the server stops.
            await _send(send, self._error_event(Overloaded(STOPPED)))
            raise
        finally:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error_event(self, error: Exception) -> bytes:
        return b"data: " + _encode(error_object(as_lightwell_error(error, self._request_id))) + b"\n\n"


async def _send(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
