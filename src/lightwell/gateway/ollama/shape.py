"""How Ollama writes answers: one JSON object a line, the last with the counts and the times."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec

from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation, joined
from lightwell.gateway.tools.parser import CallDelta, merged

Json = dict[str, Any]
Says = Callable[[str, list[CallDelta]], Json]  # text and whole calls, as the endpoint writes them


def as_message(text: str, calls: list[CallDelta]) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": msgspec.json.decode(call.arguments)}}
            for call in calls
        ]
    return {"message": message}


def as_response(text: str, calls: list[CallDelta]) -> Json:
    return {"response": text}


class Writer:
    """One answer being written. Times are this server's, in nanoseconds, from its making."""

    def __init__(self, generation: Generation, says: Says) -> None:
        self._generation, self._says = generation, says
        self._begin = time.perf_counter_ns()
        self._first: int | None = None

    async def lines(self, deltas: AsyncGenerator[list[Delta], None]) -> AsyncGenerator[bytes, None]:
        """Texts as they come; calls whole, with the last of them."""
        calls: list[CallDelta] = []
        async with aclosing(deltas):
            async for batch in deltas:
                self._note_first()
                written = b""
                for delta in batch:
                    calls = merged([*calls, *delta.calls])
                    if delta.text:
                        written += _line(self._head() | self._says(delta.text, []) | {"done": False})
                    if delta.finish_reason is not None:
                        if calls and (whole := _whole(calls)):
                            written += _line(self._head() | self._says("", whole) | {"done": False})
                        written += _line(self._head() | self._says("", []) | self._ending(delta))
                yield written

    async def body(self, deltas: AsyncGenerator[list[Delta], None]) -> Json:
        (whole,) = await joined(self._noted(deltas), 1)
        return self._head() | self._says(whole.text, _whole(whole.calls)) | self._ending(whole)

    async def _noted(self, deltas: AsyncGenerator[list[Delta], None]) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(deltas):
            async for batch in deltas:
                self._note_first()
                yield batch

    def _note_first(self) -> None:
        self._first = self._first or time.perf_counter_ns()

    def _head(self) -> Json:
        return {"model": self._generation.model, "created_at": now()}

    def _ending(self, whole: Delta) -> Json:
        end = time.perf_counter_ns()
        first = self._first or end
        (answer,) = self._generation.answers
        return {
            "done": True,
            "done_reason": "length" if whole.finish_reason == "length" else "stop",
            "total_duration": end - self._begin,
            "load_duration": 0,
            "prompt_eval_count": len(answer.request.tokens),
            "prompt_eval_duration": first - self._begin,
            "eval_count": answer.output_tokens,
            "eval_duration": end - first,
        }


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _whole(calls: list[CallDelta]) -> list[CallDelta]:
    """Without one that was cut off inside its arguments: there they are an object, not a text."""
    return [call for call in calls if _is_json(call.arguments)]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _line(content: Json) -> bytes:
    return msgspec.json.encode(content) + b"\n"
