"""/v1/admin/limits: how much a key, a team or a model may use."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.limits import Limits
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import json_response
from lightwell.gateway.subjects import checked_subject


def limit_routes(gateway: Gateway) -> list[Route]:
    async def listed(request: Request) -> Response:
        caller_of(request).check_admin()
        limits = await (await gateway.store.database()).limits.all()
        return json_response({"object": "list", "data": [described(each, limits[each]) for each in sorted(limits)]})

    async def retrieve(request: Request) -> Response:
        caller_of(request).check_admin()
        subject = checked_limited(request.path_params["subject"])
        limits = (await (await gateway.store.database()).limits.all()).get(subject)
        if limits is None:
            raise _none_for(subject)
        return json_response(described(subject, limits))

    async def put(request: Request) -> Response:
        caller_of(request).check_admin()
        subject = checked_limited(request.path_params["subject"])
        limits, warning = read_body(await request.body(), Limits)
        if limits == Limits():
            raise InvalidRequest("There is no limit in it: delete the limits to have none.")
        await (await gateway.store.database()).limits.put(subject, limits)
        gateway.limits.forget()
        return json_response(described(subject, limits), warning)

    async def delete(request: Request) -> Response:
        caller_of(request).check_admin()
        subject = checked_limited(request.path_params["subject"])
        if not await (await gateway.store.database()).limits.delete(subject):
            raise _none_for(subject)
        gateway.limits.forget()
        return json_response({"object": "limits.deleted", "subject": subject, "deleted": True})

    one = "/v1/admin/limits/{subject:path}"
    return [
        Route("/v1/admin/limits", listed),
        Route(one, retrieve),
        Route(one, put, methods=["PUT"]),
        Route(one, delete, methods=["DELETE"]),
    ]


def checked_limited(subject: str) -> str:
    """Raises InvalidRequest where it names nobody. ``default`` is every key that has no limits of its own."""
    return subject if subject == "default" else checked_subject(subject)


def _none_for(subject: str) -> NotFound:
    return NotFound(f"There are no limits for {subject!r}.", param="subject")


def described(subject: str, limits: Limits) -> dict[str, Any]:
    return {"object": "limits", "subject": subject, **msgspec.to_builtins(limits)}
