"""How the Responses API writes an answer: items, and a stream of numbered events around their pieces."""

import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from copy import deepcopy
from typing import Any

import msgspec

from lightwell.errors import LightwellError
from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation
from lightwell.gateway.responses.bodies import ResponsesBody
from lightwell.gateway.scores import Score
from lightwell.gateway.shapes import token_name
from lightwell.gateway.tools.parser import CallDelta

Json = dict[str, Any]
_FAILED = {"code": "server_error", "message": "The answer was not completed."}
Keep = Callable[[Json], Awaitable[None]]  # the response, whenever its status changes


class Writer:
    """One response being written, streamed or not: both are the same items."""

    def __init__(self, generation: Generation, body: ResponsesBody, keep: Keep) -> None:
        self._generation, self._body, self._keep = generation, body, keep
        self._numbers = itertools.count()
        self._items: list[Json] = []
        self._calls: dict[int, int] = {}  # a call's index among the items
        self._end: Delta | None = None

    async def whole(self, deltas: AsyncGenerator[list[Delta], None]) -> Json:
        async with aclosing(self.events(deltas)) as events:
            async for _ in events:
                pass
        return self.response("completed")

    async def events(self, deltas: AsyncGenerator[list[Delta], None]) -> AsyncGenerator[bytes, None]:
        """What is ready together comes as one piece of bytes. However it ends, that is kept."""
        status = "failed"
        try:
            begun = False
            async with aclosing(deltas):
                async for batch in deltas:
                    written: list[Json] = []
                    if not begun:
                        begun = True
                        await self._keep(self.response("in_progress"))
                        in_progress = self.response("in_progress")
                        written += [
                            {"type": "response.created", "response": in_progress},
                            {"type": "response.in_progress", "response": in_progress},
                        ]
                    for delta in batch:
                        written += self._take(delta)
                    if self._end is None:
                        yield self._bytes(written)
            status = self._status()
            written += [{"type": f"response.{status}", "response": self.response(status)}]
            if status == "cancelled":  # which the API has no event for
                written[-1]["type"] = "response.incomplete"
            await self._keep(self.response(status))
            yield self._bytes(written)
        except GeneratorExit:
            if status == "failed":
                status = "cancelled"
            raise
        finally:
            if status in ("failed", "cancelled") and self._end is None:
                await self._keep(self.response(status))

    def error(self, error: LightwellError) -> bytes:
        return self._bytes([{"type": "error", "code": error.code, "message": error.message, "param": error.param}])

    def response(self, status: str) -> Json:
        """As it stands."""
        body, generation = self._body, self._generation
        status = self._status() if status == "completed" else status
        return {
            "id": generation.id,
            "object": "response",
            "created_at": generation.created,
            "completed_at": int(time.time()) if status in ("completed", "incomplete") else None,
            "status": status,
            "error": {"code": "server_error", "message": "The answer was not completed."}
            if status == "failed"
            else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": generation.model,
            "output": deepcopy(self._items),  # as they are now: they will grow
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": body.store,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": _usage(generation) if status not in ("in_progress", "failed") else None,
            "metadata": body.metadata or {},
        } | ({} if generation.context is None else {"context": generation.context})

    def _status(self) -> str:
        if self._end is None:
            return "cancelled"
        return "incomplete" if self._end.finish_reason == "length" else "completed"

    def _bytes(self, written: list[Json]) -> bytes:
        numbered = [content | {"sequence_number": next(self._numbers)} for content in written]
        return b"".join(
            b"event: " + content["type"].encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
            for content in numbered
        )

    def _take(self, delta: Delta) -> Iterator[Json]:
        if delta.text or (not self._items and delta.finish_reason is not None and not delta.calls):
            yield from self._text(delta)
        for call in delta.calls:
            yield from self._call(call)
        if delta.finish_reason is not None:
            self._end = delta
            yield from self._close("incomplete" if delta.finish_reason == "length" else "completed")

    def _text(self, delta: Delta) -> Iterator[Json]:
        if not self._items or self._items[-1]["type"] != "message" or self._items[-1]["status"] != "in_progress":
            yield from self._close("completed")
            yield from self._open({"type": "message", "id": self._id("msg"), "role": "assistant", "content": []})
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._items[-1]["content"].append(part)
            yield self._of_text("response.content_part.added") | {"part": deepcopy(part)}
        part = self._items[-1]["content"][0]
        part["text"] += delta.text
        logprobs = [_logprob(score) for score in delta.scores if score.shown]
        part["logprobs"] += logprobs
        if delta.text:
            yield self._of_text("response.output_text.delta") | {"delta": delta.text, "logprobs": logprobs}

    def _call(self, call: CallDelta) -> Iterator[Json]:
        if call.name is not None:
            yield from self._close("completed")
            self._calls[call.index] = len(self._items)
            item = {"type": "function_call", "id": self._id("fc"), "call_id": call.id, "name": call.name}
            yield from self._open(item | {"arguments": ""})
        place = self._calls[call.index]
        self._items[place]["arguments"] += call.arguments
        if call.arguments:
            yield {
                "type": "response.function_call_arguments.delta",
                "item_id": self._items[place]["id"],
                "output_index": place,
                "delta": call.arguments,
            }

    def _open(self, item: Json) -> Iterator[Json]:
        self._items.append(item | {"status": "in_progress"})
        shown = deepcopy(self._items[-1])
        yield {"type": "response.output_item.added", "output_index": len(self._items) - 1, "item": shown}

    def _close(self, status: str) -> Iterator[Json]:
        """End the item that is being written, if one is."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item, place = self._items[-1], len(self._items) - 1
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._of_text("response.output_text.done") | done
            yield self._of_text("response.content_part.done") | {"part": part}
        else:
            yield {
                "type": "response.function_call_arguments.done",
                "item_id": item["id"],
                "output_index": place,
                "name": item["name"],
                "arguments": item["arguments"],
            }
        yield {"type": "response.output_item.done", "output_index": place, "item": item}

    def _of_text(self, kind: str) -> Json:
        place = len(self._items) - 1
        return {"type": kind, "item_id": self._items[place]["id"], "output_index": place, "content_index": 0}

    def _id(self, prefix: str) -> str:
        """An item's id follows from the response's."""
        return f"{prefix}_{self._generation.id.removeprefix('resp_')}{len(self._items):02x}"


def _logprob(score: Score) -> Json:
    top = [{"token": token_name(piece), "bytes": list(piece), "logprob": value} for _, piece, value in score.top]
    own = {"token": token_name(score.token), "bytes": list(score.token), "logprob": score.logprob}
    return own | {"top_logprobs": top}


def _usage(generation: Generation) -> Json:
    (answer,) = generation.answers
    prompt, output = len(answer.request.tokens), answer.output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens() if generation.usage else 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
