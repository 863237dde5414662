"""POST /api/chat and /api/generate, GET /api/tags and /api/version."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import lightwell
from lightwell.errors import LightwellError
from lightwell.gateway.bodies import ChatBody
from lightwell.gateway.caller import Caller, caller_of
from lightwell.gateway.chat import plan_chat
from lightwell.gateway.completions import plan_completion
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.failures import error_body
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.ollama.bodies import (
    ACCEPTED,
    REFUSED,
    GenerateBody,
    OllamaBody,
    OllamaChatBody,
    as_chat,
    as_completion,
    as_prompt_chat,
)
from lightwell.gateway.ollama.shape import Says, Writer, as_message, as_response, now
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import json_response
from lightwell.gateway.served import ServedModel
from lightwell.gateway.sse import stream_response
from lightwell.gateway.stages import answered

_TAG = ":latest"  # which Ollama's programs put after a name without one


def ollama_routes(gateway: Gateway) -> list[Route]:
    async def chat(request: Request) -> Response:
        body, warning = read_body(await request.body(), OllamaChatBody, REFUSED, ACCEPTED)
        model, caller = _model(gateway, body, request), caller_of(request)
        if not body.messages:
            return json_response(_loaded(body) | as_message("", []), warning)
        planned = plan_chat(gateway, model, caller, _named(as_chat(body), body), "ollama")
        generation = await unless_gone(request.receive, planned)
        return await _reply(gateway, request, generation, as_message, warning, stream=body.stream)

    async def generate(request: Request) -> Response:
        body, warning = read_body(await request.body(), GenerateBody, REFUSED, ACCEPTED)
        model, caller = _model(gateway, body, request), caller_of(request)
        if not body.prompt:
            return json_response(_loaded(body) | as_response("", []), warning)
        generation = await unless_gone(request.receive, _plan_prompt(gateway, model, caller, body))
        return await _reply(gateway, request, generation, as_response, warning, stream=body.stream)

    async def tags(request: Request) -> Response:
        caller = caller_of(request)
        named = [(model, name) for model in gateway.models for name in model.names if caller.may_use(name)]
        return json_response({"models": [_description(*each) for each in named]})

    async def version(_: Request) -> Response:
        return json_response({"version": lightwell.__version__})

    return [
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/tags", tags),
        Route("/api/version", version),
    ]


def _model(gateway: Gateway, body: OllamaBody, request: Request) -> ServedModel:
    """Raises also where it could not answer now, or not with so long a context."""
    model = gateway.find_model(body.model.removesuffix(_TAG), caller_of(request))
    gateway.admit(model)
    body.options.check_window(model.window()[0])
    return model


def _named(chat: ChatBody, body: OllamaBody) -> ChatBody:
    """With the name that was asked for, which is shown."""
    return msgspec.structs.replace(chat, model=body.model)


async def _plan_prompt(gateway: Gateway, model: ServedModel, caller: Caller, body: GenerateBody) -> Generation:
    if not body.raw and model.template is not None:
        return await plan_chat(gateway, model, caller, _named(as_prompt_chat(body), body), "ollama")
    completion = msgspec.structs.replace(as_completion(body), model=body.model)
    return await plan_completion(model, caller, completion, "ollama", default_length=None)


async def _reply(
    gateway: Gateway, request: Request, generation: Generation, says: Says, headers: dict[str, str], *, stream: bool
) -> Response:
    generation.headers |= headers
    deltas, writer = answered(gateway, generation), Writer(generation, says)
    if stream:
        lines = writer.lines(deltas)
        return await stream_response(request, generation, lines, _error_line, "application/x-ndjson", b"")
    return json_response(await unless_gone(request.receive, writer.body(deltas)), generation.headers)


def _error_line(error: LightwellError) -> bytes:
    return msgspec.json.encode(error_body(error, "/api/")) + b"\n"


def _loaded(body: OllamaBody) -> dict[str, Any]:
    """The answer to a request without a prompt, by which programs have a model loaded: it is."""
    return {"model": body.model, "created_at": now(), "done": True, "done_reason": "load"}


def _description(model: ServedModel, name: str) -> dict[str, Any]:
    hello = model.engine.hello
    tagged = name if ":" in name else name + _TAG
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
        "size": hello.weight_bytes,
        "digest": hashlib.sha256(model.fingerprint().encode()).hexdigest(),
        "details": {"parent_model": "", "format": "gguf", "family": hello.model, "families": None},
    }
