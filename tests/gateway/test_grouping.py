"""Tokens are sent together where many streams are open: never lost, never out of order, never held for long."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.gateway.answer import Delta
from lightwell.gateway.grouping import Grouping, grouped
from tests.gateway.fake_engine import FakeEngine, Script, make_client, make_gateway

TOKENS = st.lists(st.tuples(st.integers(0, 2), st.text("abc", min_size=1, max_size=2)), max_size=30)


async def source(tokens, pause: float = 0.0, error: Exception | None = None) -> AsyncGenerator[list[Delta], None]:
    for number, (choice, text) in enumerate(tokens):
        await asyncio.sleep(pause)
        yield [Delta(choice, text, tokens=[number])]
    if error is not None:
        raise error


async def collect(deltas) -> list[list[Delta]]:
    return [batch async for batch in deltas]


def joined(batches) -> dict[int, tuple[str, list[int]]]:
    whole: dict[int, tuple[str, list[int]]] = {}
    for batch in batches:
        for delta in batch:
            text, tokens = whole.get(delta.index, ("", []))
            whole[delta.index] = (text + delta.text, tokens + delta.tokens)
    return whole


@given(TOKENS, st.integers(1, 9), st.integers(0, 400))
def test_nothing_is_lost_or_out_of_order(tokens, most, open_requests):
    grouping = Grouping(most, 10.0)
    batches = asyncio.run(collect(grouped(source(tokens), grouping, lambda: open_requests)))
    assert joined(batches) == joined([[Delta(c, t, tokens=[n])] for n, (c, t) in enumerate(tokens)])
    size = grouping.size(open_requests)
    assert all(len(delta.tokens) <= size for batch in batches for delta in batch)


@pytest.mark.parametrize(("open_requests", "size"), [(0, 1), (63, 1), (64, 2), (255, 7), (256, 8), (5000, 8)])
def test_the_more_streams_the_larger_the_groups(open_requests, size):
    assert Grouping().size(open_requests) == size


async def test_with_few_streams_each_token_goes_out_as_it_comes():
    batches = await collect(grouped(source([(0, "a")] * 9), Grouping(), lambda: 5))
    assert [len(batch[0].tokens) for batch in batches] == [1] * 9


async def test_a_token_does_not_wait_long_for_others():
    batches = await collect(grouped(source([(0, "a")] * 4, pause=0.05), Grouping(8, 0.01), lambda: 1000))
    assert len(batches) == 4


async def test_where_tokens_come_slowly_none_waits_for_the_next(monkeypatch):
    """The source makes a token only when the one before it was received: one that waited would never go out."""
    clock, received = [0.0], asyncio.Semaphore(1)
    monkeypatch.setattr("lightwell.gateway.grouping.time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def slow() -> AsyncGenerator[list[Delta], None]:
        for _ in range(5):
            await received.acquire()
            clock[0] += 20
            yield [Delta(0, "a", tokens=[1])]

    batches = []
    async with asyncio.timeout(5):
        async for batch in grouped(slow(), Grouping(8, wait=10.0), lambda: 1000):
            batches.append(batch)
            received.release()
    assert len(batches) == 5


async def test_what_came_before_an_error_goes_out_before_it():
    deltas = grouped(source([(0, "a")] * 3, error=RuntimeError("broken")), Grouping(8, 9.0), lambda: 1000)
    assert joined([await anext(deltas)]) == {0: ("aaa", [0, 1, 2])}
    with pytest.raises(RuntimeError, match="broken"):
        await anext(deltas)


async def test_leaving_early_ends_the_source():
    ended = []

    async def endless() -> AsyncGenerator[list[Delta], None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield [Delta(0, "a", tokens=[1])]
        finally:
            ended.append(True)

    for open_requests in (0, 1000):
        deltas = grouped(endless(), Grouping(4, 9.0), lambda count=open_requests: count)
        await anext(deltas)
        await deltas.aclose()
    assert ended == [True, True]


class Loaded(Grouping):
    """As with many open streams."""

    def size(self, open_requests: int) -> int:
        return self.tokens


async def test_a_stream_under_load_is_the_same_in_fewer_events():
    steps = [step for token in b"Hello world" for step in (token, 0.001)]
    gateway = make_gateway(FakeEngine(lambda request: Script([*steps, 257])))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    texts, events = [], []
    for grouping in (Grouping(), Loaded()):
        gateway.grouping = grouping
        async with make_client(gateway) as client:
            response = await client.post("/v1/chat/completions", json=body)
        deltas = [part for part in response.text.split("data: ") if '"content":' in part]
        texts.append("".join(part.split('"content":"')[1].split('"')[0] for part in deltas))
        events.append(len(deltas))
    assert texts == ["Hello world"] * 2
    assert events[1] < events[0]


async def test_a_silent_stream_is_kept_alive(monkeypatch):
    monkeypatch.setattr("lightwell.gateway.sse.PING_SECONDS", 0.05)
    engine = FakeEngine(lambda request: Script([0.3, *b"ab", 0.3, 257]))
    async with make_client(make_gateway(engine)) as client:
        question = [{"role": "user", "content": "Hi"}]
        body = {"model": "tiny", "messages": question, "stream": True, "max_tokens": 9}
        chat = await client.post("/v1/chat/completions", json=body)
        message = await client.post("/v1/messages", json=body)
        lines = await client.post("/api/chat", json=body | {"max_tokens": None})
    assert chat.text.count(": ping\n\n") >= 3
    assert chat.text.endswith("data: [DONE]\n\n")
    assert message.text.count("event: ping") >= 3
    assert "ping" not in lines.text


async def test_an_error_before_the_first_token_has_its_status_only_while_nothing_was_sent(monkeypatch):
    engine = FakeEngine(lambda request: Script([0.1, RuntimeError("broken")]))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    for ping, status in ((5.0, 500), (0.01, 200)):
        monkeypatch.setattr("lightwell.gateway.sse.PING_SECONDS", ping)
        async with make_client(make_gateway(engine)) as client:
            response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == status
        assert "internal_error" in response.text
        assert "[DONE]" not in response.text


async def test_a_client_that_does_not_read_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr("lightwell.gateway.generate._MOST_HELD", 50)
    engine = FakeEngine(lambda request: Script([97] * 400))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    async with make_client(make_gateway(engine)) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "client_too_slow")
    assert engine.open == set()
