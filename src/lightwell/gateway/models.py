"""GET /v1/models and /v1/models/{id}."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.reply import json_response
from lightwell.gateway.served import ServedModel


def model_routes(gateway: Gateway) -> list[Route]:
    async def models(request: Request) -> Response:
        caller = caller_of(request)
        named = [(model, name) for model in gateway.models for name in model.names if caller.may_use(name)]
        if "anthropic-version" in request.headers:
            return json_response(_anthropic_list(named))
        return json_response({"object": "list", "data": [_description(*each) for each in named]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        model = gateway.find_model(name, caller_of(request))
        describe = _anthropic_description if "anthropic-version" in request.headers else _description
        return json_response(describe(model, name))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _description(model: ServedModel, name: str) -> dict[str, Any]:
    """``max_model_len``, ``root`` and ``parent`` are vLLM's; clients read the first. ``meta`` is llama.cpp's place for
    facts of the loaded model; in ours is what the server printed at its start."""
    window, _ = model.window()
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "lightwell",
        "root": model.names[0],
        "parent": None,
        "max_model_len": window,
        "meta": _meta(model),
    }


def _anthropic_list(named: list[tuple[ServedModel, str]]) -> dict[str, Any]:
    """The shape of the same list for a client of the Messages API, which is known by its version header."""
    names = [name for _, name in named]
    return {
        "data": [_anthropic_description(*each) for each in named],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def _anthropic_description(model: ServedModel, name: str) -> dict[str, Any]:
    window, _ = model.window()
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": window,
        "max_tokens": window,
    }


def _meta(model: ServedModel) -> dict[str, Any]:
    hello = model.engine.hello
    return {
        "chat": model.template is not None,
        "tool_call_parser": None if model.template is None else model.dialect.parser.name,
        "weight_bytes": hello.weight_bytes,
        "workspace_bytes": hello.workspace_bytes,
        "kv_bytes": hello.kv_bytes,
        "kv_blocks": hello.kv_blocks,
        "block_tokens": hello.block_tokens,
        "details": hello.details,
    }
