"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.gateway.gateway import Gateway
from lightwell.gateway.reply import json_response


def model_routes(gateway: Gateway) -> list[Route]:
    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [_model(gateway, name) for name in gateway.model_names]})

    async def model(request: Request) -> Response:
        return json_response(_model(gateway, gateway.known_model(request.path_params["name"])))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _model(gateway: Gateway, name: str) -> dict[str, Any]:
    """``max_model_len``, ``root`` and ``parent`` are vLLM's; clients read the first. ``meta`` is llama.cpp's place for
    facts of the loaded model; in ours is what the server printed at its start."""
    window, _ = gateway.window()
    return {
        "id": name,
        "object": "model",
        "created": gateway.created,
        "owned_by": "lightwell",
        "root": gateway.model_names[0],
        "parent": None,
        "max_model_len": window,
        "meta": _meta(gateway),
    }


def _meta(gateway: Gateway) -> dict[str, Any]:
    hello = gateway.engine.hello
    return {
        "chat": gateway.template is not None,
        "tool_call_parser": None if gateway.template is None else gateway.dialect.parser.name,
        "weight_bytes": hello.weight_bytes,
        "workspace_bytes": hello.workspace_bytes,
        "kv_bytes": hello.kv_bytes,
        "kv_blocks": hello.kv_blocks,
        "block_tokens": hello.block_tokens,
        "details": hello.details,
    }
