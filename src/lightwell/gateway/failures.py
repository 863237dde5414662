"""Errors to answers: the one place where an exception becomes a status, and an error object as the API writes it."""

import logging
import math
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lightwell.errors import (
    AuthenticationFailed,
    InvalidRequest,
    KillsEngine,
    LightwellError,
    NotFound,
    Overloaded,
    RateLimited,
)
from lightwell.gateway.disconnect import ClientGone
from lightwell.units import Seconds

_HEADERS: dict[type[LightwellError], dict[str, str]] = {
    AuthenticationFailed: {"www-authenticate": "Bearer"},
    KillsEngine: {"x-should-retry": "false"},  # OpenAI's clients repeat a 500 otherwise
}
_CLIENT_CLOSED_REQUEST = 499  # nobody receives it; it is for whoever counts statuses

STOPPED = "The server stopped before the answer was complete."

log = logging.getLogger(__name__)


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"


class InternalError(LightwellError):
    code = "internal_error"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The server failed on this request. Its log has the details under request id {request_id}.")


def error_body(error: LightwellError, path: str) -> dict[str, Any]:
    """As the API at this path writes it."""
    write = next((write for prefix, write in _WRITERS if path.startswith(prefix)), _openai)
    return write(error)


def _openai(error: LightwellError) -> dict[str, Any]:
    """All four keys are always there."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def _anthropic(error: LightwellError) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _ollama(error: LightwellError) -> dict[str, Any]:
    return {"error": error.message}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_WRITERS: tuple[tuple[str, Callable[[LightwellError], dict[str, Any]]], ...] = (
    ("/v1/messages", _anthropic),
    ("/api/", _ollama),
)


def error_response(error: LightwellError, path: str) -> Response:
    headers = next((headers for kind, headers in _HEADERS.items() if isinstance(error, kind)), {})
    if isinstance(error, Overloaded | RateLimited):
        headers = headers | _retry_headers(error.retry_after)
    if isinstance(error, RateLimited):
        headers = headers | error.headers
    return Response(msgspec.json.encode(error_body(error, path)), error.status, headers, "application/json")


def _retry_headers(wait: Seconds) -> dict[str, str]:
    """OpenAI's clients read both. Rounded up: after so long it is true."""
    return {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}


def as_lightwell_error(error: Exception, request_id: str) -> LightwellError:
    """The error itself if it is one of ours; any other is a bug, and is logged here, once."""
    if isinstance(error, LightwellError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return InternalError(request_id)


async def _lightwell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LightwellError)
    return error_response(error, request.url.path)


async def _http_exception(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        ours: LightwellError = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.")
    else:
        ours = NotFound(f"There is nothing at {request.url.path}.")
    response = error_response(ours, request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


ERROR_HANDLERS: dict[Any, Any] = {
    LightwellError: _lightwell_error,
    HTTPException: _http_exception,
    ClientGone: _client_gone,
    ClientDisconnect: _client_gone,  # it left while its body was being read
}
