"""/v1/admin/keys: make, list, rotate and revoke API keys."""

import time
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.bodies import Truncation
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.keys import Key, hashed, new_key, new_secret, rotated
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import json_response
from lightwell.units import Seconds, parse_seconds

OVERLAP = "24h"
_LONGEST_SECONDS: Seconds = 36500 * 86400.0
_Name = Annotated[str, msgspec.Meta(max_length=200)]


class _NewKey(msgspec.Struct):
    user: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    name: _Name = ""
    team: _Name = ""
    models: list[str] | None = None
    admin: bool = False
    truncation: Truncation | None = None
    expires_in: str | None = None


class _Rotation(msgspec.Struct):
    overlap: str = OVERLAP


def key_routes(gateway: Gateway) -> list[Route]:
    async def create(request: Request) -> Response:
        caller_of(request).check_admin()
        body, warning = read_body(await request.body(), _NewKey)
        lifetime = None if body.expires_in is None else duration(body.expires_in, "expires_in")
        secret = new_secret()
        key = new_key(
            secret,
            time.time(),
            user=body.user,
            name=body.name,
            team=body.team,
            models=body.models,
            admin=body.admin,
            truncation=body.truncation,
            lifetime=lifetime,
        )
        await (await gateway.store.database()).keys.add(key, hashed(secret))
        return json_response(described(key) | {"key": secret}, warning)

    async def listed(request: Request) -> Response:
        caller_of(request).check_admin()
        keys = await (await gateway.store.database()).keys.all()
        return json_response({"object": "list", "data": [described(key) for key in keys]})

    async def retrieve(request: Request) -> Response:
        caller_of(request).check_admin()
        return json_response(described(await _found(gateway, request)))

    async def revoke(request: Request) -> Response:
        caller_of(request).check_admin()
        await _found(gateway, request)
        key = await (await gateway.store.database()).keys.revoke(request.path_params["key"], time.time())
        gateway.keys.forget()
        assert key is not None  # keys are never deleted
        return json_response(described(key))

    async def rotate(request: Request) -> Response:
        caller_of(request).check_admin()
        body, warning = read_body(await request.body() or b"{}", _Rotation)
        old, now, secret = await _found(gateway, request), time.time(), new_secret()
        check_rotatable(old, now)
        new = rotated(old, secret, now)
        until = now + duration(body.overlap, "overlap")
        await (await gateway.store.database()).keys.rotate(old, new, hashed(secret), until)
        gateway.keys.forget()
        return json_response(described(new) | {"key": secret}, warning)

    one = "/v1/admin/keys/{key}"
    return [
        Route("/v1/admin/keys", create, methods=["POST"]),
        Route("/v1/admin/keys", listed),
        Route(one, retrieve),
        Route(one, revoke, methods=["DELETE"]),
        Route(f"{one}/rotate", rotate, methods=["POST"]),
    ]


def duration(text: str, param: str) -> Seconds:
    """At most a hundred years: no calendar has the end of much longer ones. Raises InvalidRequest."""
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"Invalid value for {param!r}: {error}.", param=param) from None
    if seconds > _LONGEST_SECONDS:
        raise InvalidRequest(f"Invalid value for {param!r}: {text[:40]} is longer than 36500d.", param=param)
    return seconds


def check_rotatable(key: Key, now: Seconds) -> None:
    """Raises InvalidRequest."""
    if (status := key.status(now)) != "active":
        raise InvalidRequest(f"The key {key.id} is {status}: make a new one.", param="key")


def no_such_key(name: str) -> NotFound:
    return NotFound(f"There is no key {name!r}: give the id that `lightwell keys list` shows.", param="key")


def described(key: Key) -> dict[str, Any]:
    return {"object": "api_key", "status": key.status(time.time())} | msgspec.structs.asdict(key)


async def _found(gateway: Gateway, request: Request) -> Key:
    name = request.path_params["key"]
    key = await (await gateway.store.database()).keys.by_id(name)
    if key is None:
        raise no_such_key(name)
    return key
