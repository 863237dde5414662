"""/v1/responses: make, read, delete and cancel responses."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.answer import Delta
from lightwell.gateway.caller import Caller, caller_of
from lightwell.gateway.chat import plan_chat
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import read_body
from lightwell.gateway.prompts import encode_messages
from lightwell.gateway.reply import SEED_HEADER, json_response
from lightwell.gateway.responses.bodies import ACCEPTED, REFUSED, InputBody, Items, ResponsesBody
from lightwell.gateway.responses.conversion import as_chat, check_include, input_items
from lightwell.gateway.responses.records import Kept
from lightwell.gateway.responses.shape import Keep, Writer
from lightwell.gateway.sse import stream_response
from lightwell.gateway.stages import answered
from lightwell.gateway.tools.asked import tools_of

_MOST_BEFORE = 1000  # responses in a row
_CANCEL_SECONDS = 30.0


def response_routes(gateway: Gateway) -> list[Route]:
    running: dict[str, asyncio.Event] = {}  # those that are kept, by id; set to cancel

    async def create(request: Request) -> Response:
        body, warning = read_body(await request.body(), ResponsesBody, REFUSED, ACCEPTED)
        check_include(body)
        caller = caller_of(request)
        model = gateway.find_model(body.model, caller)
        gateway.admit(model)
        chat = as_chat(body, await _history(gateway, caller, body.previous_response_id))
        generation = await unless_gone(request.receive, plan_chat(gateway, model, caller, chat, "responses"))
        generation.headers |= warning | {SEED_HEADER: str(generation.answers[0].request.sampling.seed)}
        deltas = answered(gateway, generation)
        if body.store:
            deltas = _until_cancelled(running, generation.id, deltas)
        writer = Writer(generation, body, _keeping(gateway, generation, body))
        if body.stream:
            return await stream_response(request, generation, writer.events(deltas), writer.error)
        return json_response(await unless_gone(request.receive, writer.whole(deltas)), generation.headers)

    async def retrieve(request: Request) -> Response:
        return json_response((await _found(gateway, request)).body)

    async def inputs(request: Request) -> Response:
        kept = await _found(gateway, request)
        items = [item | {"id": item.get("id", f"{kept.id}_in{n}")} for n, item in enumerate(kept.input)]
        ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
        return json_response({"object": "list", "data": items[::-1], "has_more": False, **ends})

    async def delete(request: Request) -> Response:
        name = request.path_params["response"]
        if not await (await gateway.store.database()).responses.delete(caller_of(request).tenant, name):
            raise _no_such(name)
        return json_response({"id": name, "object": "response", "deleted": True})

    async def cancel(request: Request) -> Response:
        kept = await _found(gateway, request)
        if kept.id not in running:
            raise InvalidRequest(f"The response {kept.id} is {kept.body['status']}: there is nothing to cancel.")
        running[kept.id].set()
        async with asyncio.timeout(_CANCEL_SECONDS):
            while kept.body["status"] == "in_progress":
                await asyncio.sleep(0.01)
                kept = await _found(gateway, request)
        return json_response(kept.body)

    async def count(request: Request) -> Response:
        return await _count(gateway, request)

    one = "/v1/responses/{response}"
    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", count, methods=["POST"]),
        Route(one, retrieve),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/input_items", inputs),
        Route(f"{one}/cancel", cancel, methods=["POST"]),
    ]


def _keeping(gateway: Gateway, generation: Generation, body: ResponsesBody) -> Keep:
    items, created = input_items(body), time.time()

    async def keep(response: dict[str, Any]) -> None:
        if body.store:
            tenant = generation.caller.tenant
            kept = Kept(generation.id, tenant, created, body.previous_response_id, items, response)
            # Also where the request that asks for it is being cancelled.
            await asyncio.shield(asyncio.ensure_future((await gateway.store.database()).responses.put(kept)))

    return keep


async def _until_cancelled(
    running: dict[str, asyncio.Event], name: str, deltas: AsyncGenerator[list[Delta], None]
) -> AsyncGenerator[list[Delta], None]:
    """The deltas, until somebody cancels the response."""
    cancelled = running[name] = asyncio.Event()
    stop = asyncio.ensure_future(cancelled.wait())
    try:
        async with aclosing(deltas):
            while True:
                step = asyncio.ensure_future(anext(deltas, None))
                await asyncio.wait({step, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    step.cancel()
                    await asyncio.wait({step})
                    return
                if (batch := step.result()) is None:
                    return
                yield batch
    finally:
        stop.cancel()
        del running[name]


async def _count(gateway: Gateway, request: Request) -> Response:
    body, warning = read_body(await request.body(), InputBody, REFUSED, ACCEPTED)
    caller = caller_of(request)
    model = gateway.find_model(body.model, caller)
    chat = as_chat(body, await _history(gateway, caller, body.previous_response_id))
    tokens = await encode_messages(model, chat.messages, None, None, tools_of(chat))
    return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)}, warning)


async def _history(gateway: Gateway, caller: Caller, last: str | None) -> Items:
    """The items of a response and of all before it, the oldest first. Raises NotFound."""
    found: list[Items] = []
    while last is not None:
        kept = await (await gateway.store.database()).responses.find(caller.tenant, last)
        if kept is None:
            raise NotFound(
                f"There is no response {last!r} to go on from: only those made with 'store': true are kept.",
                param="previous_response_id",
            )
        if len(found) >= _MOST_BEFORE:
            raise InvalidRequest(f"More than {_MOST_BEFORE} responses follow each other.", param="previous_response_id")
        found.append([*kept.input, *kept.body["output"]])
        last = kept.previous
    return [item for items in reversed(found) for item in items]


async def _found(gateway: Gateway, request: Request) -> Kept:
    name = request.path_params["response"]
    kept = await (await gateway.store.database()).responses.find(caller_of(request).tenant, name)
    if kept is None:
        raise _no_such(name)
    return kept


def _no_such(name: str) -> NotFound:
    return NotFound(f"There is no response {name!r}: only those made with 'store': true are kept.", param="response_id")
