"""Fault 61: a client that goes away ends the engine's work at once, streaming or not. Driven without a socket."""

import asyncio
import contextlib
import json

import pytest
from starlette.types import Message

from lightwell.gateway.app import create_app
from lightwell.gateway.disconnect import ClientGone, unless_gone
from tests.gateway.fake_engine import FakeEngine, Script, make_gateway


class Caller:
    """One POST to the app, as a server makes it; ``leave`` is the client closing its connection."""

    def __init__(self, app, path: str, **body) -> None:
        self.sent: list[Message] = []
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "server": ("test", 80),
        }
        self.done = asyncio.create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": ["hi", "you"]},
}


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silent", [True, False], ids=["before the first token", "after it"])
async def test_the_engine_stops_when_the_client_leaves(path, stream, silent):
    engine = FakeEngine(lambda request: Script([3600.0] if silent else [72, 105, 3600.0]))
    gateway = make_gateway(engine)
    choices = 2 if path == "/v1/completions" else 1
    caller = Caller(create_app(gateway), path, stream=stream, **BODIES[path])
    await until(lambda: len(engine.open) == choices and (silent or not stream or "Hi" in caller.text()))
    assert gateway.drain.open == 1
    caller.leave()
    await until(lambda: not engine.open)
    assert sorted(engine.aborted) == sorted(request.id for request in engine.requests)
    await asyncio.wait_for(caller.done, 5)
    assert gateway.drain.open == 0
    assert "[DONE]" not in caller.text()


async def test_vectors_that_nobody_waits_for_are_not_computed():
    engine = FakeEngine(lambda request: Script([3600.0] if request.tokens[-1] == 98 else []))
    caller = Caller(create_app(gateway := make_gateway(engine)), "/v1/embeddings", input=["a", "b", "c b"])
    await until(lambda: len(engine.requests) == 3 and len(engine.open) == 2)
    caller.leave()
    await asyncio.wait_for(caller.done, 5)
    assert engine.open == set()
    assert len(engine.aborted) == 2
    assert gateway.drain.open == 0


async def test_a_client_that_left_before_the_engine_was_asked_costs_nothing():
    engine = FakeEngine(lambda request: Script([72, 3600.0]))
    caller = Caller(create_app(make_gateway(engine)), "/v1/completions", prompt="hi")
    caller.leave()
    await asyncio.wait_for(caller.done, 5)
    assert engine.open == set()


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings", "/tokenize", "/detokenize"])
async def test_a_client_that_leaves_while_it_sends_its_body_is_no_error(path, caplog):
    engine = FakeEngine(Script())
    caller = Caller(create_app(make_gateway(engine)), path)
    caller._inbox.get_nowait()  # instead of a whole body
    caller._inbox.put_nowait({"type": "http.request", "body": b'{"prom', "more_body": True})
    caller.leave()
    await caller.done
    assert caller.sent[0]["status"] == 499
    assert not caplog.records


async def test_a_server_that_stops_tells_the_client_of_an_open_stream():
    engine = FakeEngine(lambda request: Script([72, 105, 3600.0]))
    caller = Caller(create_app(make_gateway(engine)), "/v1/completions", prompt="hi", stream=True)
    await until(lambda: "Hi" in caller.text())
    caller.done.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller.done
    assert engine.open == set()
    last = caller.text().strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "overloaded"


async def test_work_that_ends_first_gives_its_result_and_stops_watching():
    never: asyncio.Queue[Message] = asyncio.Queue()

    async def work() -> int:
        return 7

    assert await unless_gone(never.get, work()) == 7
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_the_work_raises_is_raised():
    async def work() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await unless_gone(asyncio.Queue().get, work())


async def test_a_client_that_left_cancels_the_work_and_waits_for_its_end():
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    inbox.put_nowait({"type": "http.request"})
    inbox.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await unless_gone(inbox.get, work())
    assert ended == [True]
