"""A planned generation to its response, streamed or whole."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lightwell.gateway.answer import Delta
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation, joined
from lightwell.gateway.ranking import best
from lightwell.gateway.shapes import Shape
from lightwell.gateway.sse import events, stream_response
from lightwell.gateway.stages import answered

SEED_HEADER = "x-lightwell-seed"  # with it an answer can be had again where the client gave no seed


async def reply(
    gateway: Gateway, request: Request, generation: Generation, shape: Shape, headers: dict[str, str], *, stream: bool
) -> Response:
    generation.headers |= headers | {SEED_HEADER: str(generation.answers[0].request.sampling.seed)}
    deltas = answered(gateway, generation)
    if stream:
        return await stream_response(request, generation, events(generation, shape, deltas))
    content = await unless_gone(request.receive, whole(generation, shape, deltas))
    return json_response(content, generation.headers)


async def whole(generation: Generation, shape: Shape, deltas: AsyncGenerator[list[Delta], None]) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = await joined(deltas, len(generation.answers))
    shown = best(generation.answers, choices, generation.candidates, generation.choices)
    return {
        "id": generation.id,
        "object": shape.object,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.served.fingerprint(),
        "choices": [shape.choice(choice) for choice in shown],
        "usage": generation.usage,
    } | shape.beside(generation)


def json_response(content: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")
