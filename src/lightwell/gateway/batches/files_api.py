"""/v1/files: what clients upload for batches, and what batches write for them."""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound, PayloadTooLarge
from lightwell.gateway.batches.pages import page_of
from lightwell.gateway.batches.records import File
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.reply import json_response
from lightwell.units import Seconds, format_bytes

MOST_BYTES = 200 << 20  # OpenAI's bound for the input of a batch
_PURPOSES = ("batch", "user_data")
_LEAST_SECONDS, _MOST_SECONDS = 3600, 2592000  # OpenAI's bounds for expires_after
_READ_BYTES = 1 << 20


def file_routes(gateway: Gateway) -> list[Route]:
    async def upload(request: Request) -> Response:
        tenant = caller_of(request).tenant
        async with _form(request) as form:
            source, purpose, seconds = _checked(form)
            now = time.time()
            file = File(
                new_file_id(),
                tenant,
                purpose,
                source.filename or "upload",
                source.size or 0,
                now,
                None if seconds is None else now + seconds,
            )
            await (await gateway.store.database()).files.add(file, _content(source))
        return json_response(described(file))

    async def listed(request: Request) -> Response:
        page = page_of(request, most=10_000)
        newest_first = request.query_params.get("order", "desc") != "asc"
        files = await (await gateway.store.database()).files.page(
            caller_of(request).tenant,
            time.time(),
            purpose=request.query_params.get("purpose"),
            after=page.after,
            limit=page.limit + 1,
            newest_first=newest_first,
        )
        return json_response(page.listed(files, described))

    async def retrieve(request: Request) -> Response:
        return json_response(described(await _found(gateway, request)))

    async def content(request: Request) -> Response:
        file = await _found(gateway, request)
        parts: AsyncIterator[bytes] = (await gateway.store.database()).files.content(file.id)
        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(parts, headers=headers, media_type="application/octet-stream")

    async def delete(request: Request) -> Response:
        name = request.path_params["file"]
        if not await (await gateway.store.database()).files.delete(caller_of(request).tenant, name):
            raise no_such_file(name)
        return json_response({"id": name, "object": "file", "deleted": True})

    return [
        Route("/v1/files", upload, methods=["POST"]),
        Route("/v1/files", listed),
        Route("/v1/files/{file}", retrieve),
        Route("/v1/files/{file}", delete, methods=["DELETE"]),
        Route("/v1/files/{file}/content", content),
    ]


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def described(file: File) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def no_such_file(name: str) -> NotFound:
    return NotFound(f"There is no file {name!r}.", param="file_id")


async def _found(gateway: Gateway, request: Request) -> File:
    name = request.path_params["file"]
    file = await (await gateway.store.database()).files.find(caller_of(request).tenant, name, time.time())
    if file is None:
        raise no_such_file(name)
    return file


class _form:  # reads like the function that it is
    """The form of a request, its files closed afterwards. Raises InvalidRequest, PayloadTooLarge."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def __aenter__(self) -> dict[str, Any]:
        if int(self._request.headers.get("content-length", 0)) > MOST_BYTES + _READ_BYTES:
            raise _too_large()
        try:
            self._form = await self._request.form(max_files=1, max_fields=20)
        except MultiPartException as error:
            raise InvalidRequest(f"The body is no multipart form: {error.message}") from None
        return dict(self._form)

    async def __aexit__(self, *error: object) -> None:
        await self._form.close()


def _checked(form: dict[str, Any]) -> tuple[UploadFile, str, Seconds | None]:
    source, purpose = form.get("file"), form.get("purpose")
    if not isinstance(source, UploadFile):
        raise InvalidRequest("'file' is required: send a multipart form with a file.", param="file")
    if purpose not in _PURPOSES:
        raise InvalidRequest(f"'purpose' is {purpose!r}: give one of {', '.join(_PURPOSES)}.", param="purpose")
    if (source.size or 0) > MOST_BYTES:
        raise _too_large()
    return source, purpose, _expiry(form)


def _expiry(form: dict[str, Any]) -> Seconds | None:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at" or not isinstance(seconds, str) or not seconds.isdecimal():
        raise InvalidRequest(
            "'expires_after' needs the anchor 'created_at' and a number of seconds.", param="expires_after"
        )
    return checked_seconds(int(seconds[:12]))


def checked_seconds(seconds: int) -> Seconds:
    """How long a file is kept, inside OpenAI's bounds. Raises InvalidRequest."""
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise InvalidRequest(
            f"A file is kept for {_LEAST_SECONDS} to {_MOST_SECONDS} seconds, not for {seconds}.",
            param="expires_after",
        )
    return seconds


def _content(source: UploadFile) -> Iterator[bytes]:
    while piece := source.file.read(_READ_BYTES):
        yield piece


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"A file has at most {format_bytes(MOST_BYTES)}.")
