"""Frame: what is the same around every request: its id, its time, its count, and the last resort for errors.

Pure ASGI, because middleware of the other kind breaks streaming and disconnects.
"""

import asyncio
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightwell.errors import Overloaded
from lightwell.gateway.drain import Drain
from lightwell.gateway.failures import STOPPED, as_lightwell_error, error_response

_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_OPENAI_VERSION = "2020-10-01"  # the version of the API that OpenAI's own servers name


class Frame:
    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app, self.drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        begin, started = time.perf_counter(), False

        async def framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-version"] = _OPENAI_VERSION
                headers["openai-processing-ms"] = f"{(time.perf_counter() - begin) * 1000:.0f}"
            await send(message)

        with self.drain.request():
            try:
                await self.app(scope, receive, framed)
            except Exception as error:
                if started:
                    raise  # too late for an answer: the server logs it and closes the connection
                await error_response(as_lightwell_error(error, request_id), scope["path"])(scope, receive, framed)
            except asyncio.CancelledError:
                # Only a server that stops cancels a request. A stream has told its client already (sse.py).
                if not started:
                    await error_response(Overloaded(STOPPED), scope["path"])(scope, receive, framed)


def _request_id(asked: str | None) -> str:
    """The client's own id if it is fit for a header and a log line, else a new one."""
    return asked if asked and _SANE_ID.fullmatch(asked) else f"req_{uuid.uuid4().hex}"
