"""How the Messages API writes an answer: content in blocks, and a stream of named events around their pieces."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation, joined
from lightwell.gateway.tools.parser import CallDelta

Json = dict[str, Any]


async def message(generation: Generation, deltas: AsyncGenerator[list[Delta], None]) -> Json:
    """The body of an answer that is not streamed."""
    (whole,) = await joined(deltas, 1)
    content: list[Json] = [{"type": "text", "text": whole.text}] if whole.text or not whole.calls else []
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)} for call in whole.calls
    ]
    return _head(generation) | {"content": content, "usage": _usage(generation)} | _ending(whole)


async def events(generation: Generation, deltas: AsyncGenerator[list[Delta], None]) -> AsyncGenerator[bytes, None]:
    """The events of a stream; those that are ready together come as one piece of bytes."""
    blocks = _Blocks()
    begun = False
    async with aclosing(deltas):
        async for batch in deltas:
            written = list[Json]()
            if not begun:
                head = _head(generation) | {"content": [], "stop_reason": None, "stop_sequence": None}
                head |= {"usage": _usage(generation)}
                written += [{"type": "message_start", "message": head}, {"type": "ping"}]
                begun = True
            for delta in batch:
                written += blocks.take(delta)
                if delta.finish_reason is not None:
                    written += [
                        {"type": "message_delta", "delta": _ending(delta), "usage": _usage(generation)},
                        {"type": "message_stop"},
                    ]
            yield b"".join(map(event, written))


def event(content: Json) -> bytes:
    name: str = content["type"]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


class _Blocks:
    """Content blocks opened and closed as texts and calls come."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | int | None = None  # "text", or the index of the call

    def take(self, delta: Delta) -> Iterator[Json]:
        if delta.text:
            yield from self._in("text", {"type": "text", "text": ""})
            yield self._piece({"type": "text_delta", "text": delta.text})
        for call in delta.calls:
            yield from self._in(call.index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            yield self._piece({"type": "input_json_delta", "partial_json": call.arguments})
        if delta.finish_reason is not None:
            if self._index < 0:  # an answer without a word still has its block
                yield from self._in("text", {"type": "text", "text": ""})
            yield from self._close()

    def _in(self, which: str | int, block: Json) -> Iterator[Json]:
        if self._open != which:
            yield from self._close()
            self._open, self._index = which, self._index + 1
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _piece(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _head(generation: Generation) -> Json:
    return {"id": generation.id, "type": "message", "role": "assistant", "model": generation.model}


def _ending(whole: Delta) -> Json:
    match whole.finish_reason:
        case "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        case "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(whole.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": whole.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(generation: Generation) -> Json:
    """Cached tokens are no part of the input tokens here."""
    (answer,) = generation.answers
    cached = generation.cached_tokens()
    return {
        "input_tokens": len(answer.request.tokens) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": answer.output_tokens,
    }


def _arguments(call: CallDelta) -> Any:
    """An object; where the answer ended inside it, what there is of it as a text."""
    try:
        return msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return {"partial_json": call.arguments}
