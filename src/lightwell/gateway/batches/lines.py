"""The lines of a batch: read from its file, checked, and each answered as its endpoint would."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from lightwell.errors import InvalidRequest, LightwellError
from lightwell.gateway.batches.records import Line
from lightwell.gateway.bodies import ChatBody, CompletionBody, EmbeddingBody, GenerationBody
from lightwell.gateway.caller import Caller
from lightwell.gateway.chat import chat_shape, plan_chat
from lightwell.gateway.completions import completion_shape, plan_completion
from lightwell.gateway.embeddings import embedded, plan_embeddings, read_embedding_body
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import whole
from lightwell.gateway.stages import answered

MOST_LINES = 50_000  # OpenAI's bound
_MOST_ERRORS = 100
_LONGEST_LINE = 8 << 20
_PRIORITY = 1 << 20  # behind everybody who waits
Prepare = Callable[[Generation], None]


class _Asked(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


async def read_lines(
    batch: str, endpoint: str, content: AsyncIterator[bytes]
) -> tuple[list[Line], list[dict[str, Any]]]:
    """The lines, and what is wrong with them, as OpenAI lists it: a batch with any error is not begun."""
    lines: list[Line] = []
    errors: list[dict[str, Any]] = []
    seen: set[str] = set()
    number = 0
    async for number, text in _numbered(content):
        if not text.strip():
            continue
        try:
            lines.append(_line(batch, endpoint, len(lines), text, seen))
        except InvalidRequest as error:
            errors.append(_error(error, number))
        if len(errors) >= _MOST_ERRORS or len(lines) > MOST_LINES:
            break
    if len(lines) > MOST_LINES:
        errors.append(_error(InvalidRequest(f"A batch has at most {MOST_LINES} requests."), number))
    if not lines and not errors:
        errors.append(_error(InvalidRequest("The file has no requests: write one JSON object a line."), None))
    return lines, errors


def _line(batch: str, endpoint: str, number: int, text: bytes, seen: set[str]) -> Line:
    if len(text) > _LONGEST_LINE:
        raise InvalidRequest(f"The line is longer than {_LONGEST_LINE} bytes.")
    try:
        asked = msgspec.json.decode(text, type=_Asked)
        body = msgspec.json.decode(asked.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The line is no request: {error}.") from None
    if asked.custom_id in seen:
        raise InvalidRequest(f"Two lines have the custom_id {asked.custom_id!r}: give each its own.", param="custom_id")
    if asked.method != "POST":
        raise InvalidRequest(f"'method' is {asked.method!r}: it must be POST.", param="method")
    if asked.url != endpoint:
        raise InvalidRequest(f"'url' is {asked.url!r}, but the batch is for {endpoint}.", param="url")
    if not isinstance(body, dict):
        raise InvalidRequest("'body' must be an object.", param="body")
    if body.get("stream"):
        raise InvalidRequest("'body.stream' is true: a batch has no streams.", param="body.stream")
    seen.add(asked.custom_id)
    return Line(batch, number, asked.custom_id, bytes(asked.body))


def _error(error: LightwellError, number: int | None) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "param": error.param, "line": number}


async def _numbered(content: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Lines with their numbers from 1 on. One that is too long is cut where that is certain."""
    held, number = bytearray(), 0
    async for piece in content:
        held += piece
        *complete, rest = held.split(b"\n")
        for text in complete:
            number += 1
            yield number, bytes(text)
        held = bytearray(rest[: _LONGEST_LINE + 1])
    if held:
        yield number + 1, bytes(held)


async def _chat(gateway: Gateway, caller: Caller, data: bytes, prepare: Prepare) -> dict[str, Any]:
    body = _unhurried(read_body(data, ChatBody)[0])
    model = gateway.find_model(body.model, caller)
    gateway.admit(model)
    generation = await plan_chat(gateway, model, caller, body)
    prepare(generation)
    return await whole(generation, chat_shape(body), answered(gateway, generation))


async def _completion(gateway: Gateway, caller: Caller, data: bytes, prepare: Prepare) -> dict[str, Any]:
    body = _unhurried(read_body(data, CompletionBody)[0])
    model = gateway.find_model(body.model, caller)
    gateway.admit(model)
    generation = await plan_completion(model, caller, body)
    prepare(generation)
    return await whole(generation, completion_shape(body), answered(gateway, generation))


async def _embeddings(gateway: Gateway, caller: Caller, data: bytes, prepare: Prepare) -> dict[str, Any]:
    body = _unhurried(read_embedding_body(data)[0])
    model = gateway.find_model(body.model, caller)
    gateway.admit(model)
    generation = await plan_embeddings(model, caller, body)
    prepare(generation)
    return await embedded(gateway, generation, body)


def _unhurried(body: Any) -> Any:
    assert isinstance(body, GenerationBody | EmbeddingBody)
    return msgspec.structs.replace(body, priority=_PRIORITY + max(body.priority or 0, 0))


# Endpoint: how a line for it is answered.
ENDPOINTS = {"/v1/chat/completions": _chat, "/v1/completions": _completion, "/v1/embeddings": _embeddings}
