"""Errors to answers: the one place where an exception becomes OpenAI's error object and a status."""

import logging
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lightwell.errors import InvalidRequest, KillsEngine, LightwellError, NotFound, Overloaded
from lightwell.gateway.disconnect import ClientGone

_RETRY_AFTER_SECONDS = 1
_HEADERS: dict[type[LightwellError], dict[str, str]] = {
    Overloaded: {"retry-after": str(_RETRY_AFTER_SECONDS)},
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


def error_object(error: LightwellError) -> dict[str, Any]:
    """All four keys of OpenAI's error object are always there."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: LightwellError) -> Response:
    headers = next((headers for kind, headers in _HEADERS.items() if isinstance(error, kind)), None)
    return Response(msgspec.json.encode(error_object(error)), error.status, headers, "application/json")


def as_lightwell_error(error: Exception, request_id: str) -> LightwellError:
    """The error itself if it is one of ours; any other is a bug, and is logged here, once."""
    if isinstance(error, LightwellError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return InternalError(request_id)


async def _lightwell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LightwellError)
    return error_response(error)


async def _http_exception(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        ours: LightwellError = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.")
    else:
        ours = NotFound(f"There is nothing at {request.url.path}.")
    response = error_response(ours)
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
