"""/v1/batches: many requests in a file, answered when there is room."""

import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.batches.files_api import checked_seconds, no_such_file
from lightwell.gateway.batches.lines import ENDPOINTS
from lightwell.gateway.batches.pages import page_of
from lightwell.gateway.batches.records import Batch
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import json_response
from lightwell.units import Seconds

_WINDOW_SECONDS: Seconds = 24 * 3600.0
_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=512)]


class _Expiry(msgspec.Struct):
    anchor: Literal["created_at"]
    seconds: int


class _Body(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_Key, _Text], msgspec.Meta(max_length=16)] | None = None
    output_expires_after: _Expiry | None = None


def batch_routes(gateway: Gateway) -> list[Route]:
    async def create(request: Request) -> Response:
        body, warning = read_body(await request.body(), _Body)
        caller, now = caller_of(request), time.time()
        if body.endpoint not in ENDPOINTS:
            served = ", ".join(ENDPOINTS)
            raise InvalidRequest(f"'endpoint' is {body.endpoint!r}: batches are for {served}.", param="endpoint")
        database = await gateway.store.database()
        file = await database.files.find(caller.tenant, body.input_file_id, now)
        if file is None:
            raise no_such_file(body.input_file_id)
        if file.purpose != "batch":
            raise InvalidRequest(f"The file is for {file.purpose!r}, not for a batch.", param="input_file_id")
        expiry = body.output_expires_after
        batch = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            tenant=caller.tenant,
            caller=msgspec.json.encode(caller).decode(),
            endpoint=body.endpoint,
            input_file=file.id,
            status="validating",
            created_at=now,
            expires_at=now + _WINDOW_SECONDS,
            metadata=body.metadata or {},
            output_seconds=None if expiry is None else checked_seconds(expiry.seconds),
        )
        await database.batches.add(batch)
        gateway.batch_work.set()
        return json_response(described(batch), warning)

    async def listed(request: Request) -> Response:
        page = page_of(request, most=100)
        database = await gateway.store.database()
        batches = await database.batches.page(caller_of(request).tenant, after=page.after, limit=page.limit + 1)
        return json_response(page.listed(batches, described))

    async def retrieve(request: Request) -> Response:
        return json_response(described(await _found(gateway, request)))

    async def cancel(request: Request) -> Response:
        batch = await _found(gateway, request)
        database = await gateway.store.database()
        changed = await database.batches.change(batch.id, ("validating", "in_progress"), _cancelling)
        if changed is None and batch.status not in ("cancelling", "cancelled"):
            raise InvalidRequest(f"The batch is {batch.status}: there is nothing to cancel.", param="batch_id")
        gateway.batch_work.set()
        return json_response(described(changed or batch))

    return [
        Route("/v1/batches", create, methods=["POST"]),
        Route("/v1/batches", listed),
        Route("/v1/batches/{batch}", retrieve),
        Route("/v1/batches/{batch}/cancel", cancel, methods=["POST"]),
    ]


async def _found(gateway: Gateway, request: Request) -> Batch:
    name = request.path_params["batch"]
    batch = await (await gateway.store.database()).batches.find(caller_of(request).tenant, name)
    if batch is None:
        raise NotFound(f"There is no batch {name!r}.", param="batch_id")
    return batch


def _cancelling(batch: Batch) -> Batch:
    times = batch.times | {"cancelling": time.time()}
    return msgspec.structs.replace(batch, status="cancelling", times=times)


def described(batch: Batch) -> dict[str, Any]:
    stages = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    times = {f"{stage}_at": int(batch.times[stage]) if stage in batch.times else None for stage in stages}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        **times,
        "request_counts": {"total": batch.total, "completed": batch.done, "failed": batch.failed},
        "metadata": batch.metadata or None,
    }
