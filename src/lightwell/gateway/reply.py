"""A planned generation to its response, streamed or whole."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lightwell.gateway.answer import Delta
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation, joined, run
from lightwell.gateway.ranking import best
from lightwell.gateway.shapes import Shape
from lightwell.gateway.sse import EventStream, events

SEED_HEADER = "x-lightwell-seed"  # with it an answer can be had again where the client gave no seed


async def reply(
    gateway: Gateway, request: Request, generation: Generation, shape: Shape, headers: dict[str, str], *, stream: bool
) -> Response:
    headers = headers | {SEED_HEADER: str(generation.answers[0].request.sampling.seed)}
    deltas = run(gateway, generation)
    if stream:
        pieces = events(generation, shape, gateway.fingerprint(), deltas)
        return EventStream(pieces, headers, request.state.request_id)
    whole = await unless_gone(request.receive, joined(deltas, len(generation.answers)))
    return json_response(_whole(gateway, generation, shape, whole), headers)


def _whole(gateway: Gateway, generation: Generation, shape: Shape, whole: list[Delta]) -> dict[str, Any]:
    shown = best(generation.answers, whole, generation.candidates, generation.choices)
    return {
        "id": generation.id,
        "object": shape.object,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": gateway.fingerprint(),
        "choices": [shape.choice(choice) for choice in shown],
        "usage": generation.usage,
    } | shape.beside(generation)


def json_response(content: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")
