"""The bill: a row for every admitted request, with what the engine made, and sums that are exact."""

import asyncio
import time
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.gateway.caller import Caller
from lightwell.gateway.prices import Price, dollars_per_million, per_million, per_token
from lightwell.units import PICODOLLARS
from tests.gateway.fake_engine import Script, make_client, says

CHAT = "/v1/chat/completions"
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TOKENS = st.integers(0, 10**7)


@asynccontextmanager
async def writing(gateway):
    task = asyncio.create_task(gateway.ledger.run())
    try:
        yield
    finally:
        await gateway.ledger.flush()
        task.cancel()


async def row_of(gateway, answer: str):
    await gateway.ledger.flush()
    return await (await gateway.store.database()).usage.find(answer)


async def test_an_answer_has_a_row(client, gateway, engine, monkeypatch):
    caller = Caller(key="key_1", user="ann", team="red")
    monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", caller)
    engine.script = lambda request: says("Hello", cached_tokens=3)
    before = time.time()
    async with writing(gateway):
        answer = (await client.post(CHAT, json=QUESTION | {"model": "alias"})).json()
        row = await row_of(gateway, answer["id"])
    usage = answer["usage"]
    assert (row.key, row.user, row.team, row.tenant) == ("key_1", "ann", "red", "team:red")
    assert (row.model, row.api, row.batch, row.outcome) == ("tiny", "chat", False, "ok")
    assert (row.prompt_tokens, row.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (row.cached_tokens, row.produced_tokens, row.cost) == (3, 6, 0)
    assert before <= row.at <= time.time()
    assert 0 <= row.first_token_seconds <= row.seconds < 60


@pytest.mark.parametrize(
    ("path", "body", "api"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 5, "n": 2}, "completion"),
        ("/v1/messages", QUESTION | {"max_tokens": 5}, "messages"),
        ("/api/chat", QUESTION, "ollama"),
    ],
)
async def test_every_api_is_billed(client, gateway, engine, path, body, api):
    async with writing(gateway):
        assert (await client.post(path, json=body)).status_code == 200
        await gateway.ledger.flush()
        (total,) = await (await gateway.store.database()).usage.sums(())
    firsts = {tuple(request.tokens): request for request in engine.requests}
    assert (total.requests, total.prompt_tokens) == (1, sum(map(len, firsts)))
    assert total.output_tokens > 0


async def test_a_stop_string_is_seen_late_and_only_the_answer_is_paid(client, gateway, engine):
    engine.script = lambda request: Script([*b"Hello ", 0.05, *b"world"])
    async with writing(gateway):
        answer = (await client.post(CHAT, json=QUESTION | {"stop": "l"})).json()
        row = await row_of(gateway, answer["id"])
    assert row.output_tokens == answer["usage"]["completion_tokens"] == 3
    assert row.produced_tokens >= 3
    assert row.outcome == "ok"


async def test_an_answer_that_was_broken_off_is_paid_as_far_as_it_was_made(gateway, engine):
    engine.script = lambda request: Script([*b"abc", 60.0])
    async with writing(gateway), make_client(gateway) as client:
        asking = asyncio.create_task(client.post(CHAT, json=QUESTION))
        while not engine.requests or engine.clock < 0.05:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait({asking})
        while engine.open:
            await asyncio.sleep(0.01)
        row = await row_of(gateway, engine.requests[0].id)
    assert (row.outcome, row.output_tokens, row.produced_tokens) == ("aborted", 3, 3)


async def test_a_failed_request_has_a_row_too(client, gateway, engine):
    engine.script = lambda request: Script([97, RuntimeError("broken")])
    async with writing(gateway):
        assert (await client.post(CHAT, json=QUESTION)).status_code == 500
        row = await row_of(gateway, engine.requests[0].id)
    assert (row.outcome, row.output_tokens) == ("failed", 1)


async def test_what_was_refused_has_none(client, gateway):
    async with writing(gateway):
        for body in (QUESTION | {"temperature": 9}, QUESTION | {"model": "x"}, QUESTION | {"max_tokens": 10**6}):
            assert (await client.post(CHAT, json=body)).status_code in (400, 404)
        await gateway.ledger.flush()
        assert await (await gateway.store.database()).usage.sums(()) == []


async def test_a_price_is_what_the_row_costs(client, gateway, engine):
    engine.script = lambda request: says("Hello", cached_tokens=4)
    async with writing(gateway):
        sheet = {"input": 0.5, "cached_input": 0.05, "output": 2.0}
        put = await client.put("/v1/admin/prices/tiny", json=sheet)
        assert put.json() == {"object": "price", "model": "tiny", "batch_discount": 0.5, **sheet}
        answer = (await client.post(CHAT, json=QUESTION)).json()
        row = await row_of(gateway, answer["id"])
    prompt = answer["usage"]["prompt_tokens"]
    assert row.cost == (prompt - 4) * 500_000 + 4 * 50_000 + 6 * 2_000_000
    assert (row.input_price, row.cached_price, row.output_price) == (500_000, 50_000, 2_000_000)
    usage = (await client.get("/v1/usage", params={"by": "model"})).json()["data"]
    assert usage[0]["cost_dollars"] == pytest.approx(row.cost / PICODOLLARS)


async def test_usage_is_summed_by_what_is_asked_and_tenants_see_their_own(gateway, monkeypatch):
    async with writing(gateway), make_client(gateway) as client:
        for user in ("ann", "bob", "ann"):
            monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key=f"k-{user}", user=user, admin=True))
            await client.post(CHAT, json=QUESTION)
        rows = (await client.get("/v1/admin/usage", params={"by": "user,model"})).json()["data"]
        assert [(row["user"], row["model"], row["requests"]) for row in rows] == [
            ("ann", "tiny", 2),
            ("bob", "tiny", 1),
        ]
        own = (await client.get("/v1/usage", params={"by": "user"})).json()["data"]
        assert [(row["user"], row["requests"]) for row in own] == [("ann", 2)]
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = (await client.get("/v1/admin/usage", params={"by": "day", "since": today})).json()["data"]
        assert [(row["day"], row["requests"]) for row in days] == [(today, 3)]
        assert (await client.get("/v1/admin/usage", params={"until": today})).json()["data"] == []


@pytest.mark.parametrize("query", [{"by": "colour"}, {"since": "yesterday"}, {"until": "2026-13-01"}])
async def test_a_sum_of_nothing_is_refused(client, query):
    response = await client.get("/v1/usage", params=query)
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(query)))


async def test_rows_wait_while_the_store_is_away(client, gateway, monkeypatch):
    monkeypatch.setattr("lightwell.gateway.ledger._RETRY_SECONDS", 0.01)
    database = await gateway.store.database()
    add, failures = database.usage.add, []

    async def failing(rows, session=None):
        if len(failures) < 3:
            failures.append(len(rows))
            raise OSError("away")
        await add(rows, session)

    database.usage.add = failing
    async with writing(gateway):
        ids = [(await client.post(CHAT, json=QUESTION)).json()["id"] for _ in range(5)]
        for each in ids:
            assert await row_of(gateway, each) is not None
    assert len(failures) == 3


async def test_no_prompt_and_no_answer_is_in_the_store_or_the_log(client, gateway, engine, caplog):
    engine.script = lambda request: says("the secret answer")
    async with writing(gateway):
        message = {"role": "user", "content": "the secret question"}
        await client.post(CHAT, json=QUESTION | {"messages": [message]})
        await gateway.ledger.flush()
    folder = Path(gateway.store.url.removeprefix("sqlite:///")).parent
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"usage" in written
    assert b"secret" not in written
    assert "secret" not in caplog.text


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 10**9), st.integers(0, 10**9))
def test_costs_add_up_exactly(prompt, cached, output, input_price, output_price):
    cached = min(cached, prompt)
    price = Price(input_price, input_price // 10, output_price, 0.5)
    whole = price.cost(prompt, cached, output)
    assert whole == price.cost(prompt - cached, 0, 0) + price.cost(cached, cached, 0) + price.cost(0, 0, output)
    assert abs(2 * price.cost(prompt, cached, output, batch=True) - whole) <= 1


@given(st.floats(0, 1e5))
def test_prices_are_kept_to_the_picodollar(dollars):
    assert per_million(per_token(dollars)) == pytest.approx(dollars, abs=1e-6)


def test_an_hour_is_earned(shared):

    examples = tomllib.loads((shared / "worked_examples.toml").read_text())["example"]
    expected = next(each for each in examples if each["id"] == "break-even")["expected"]
    found = [dollars_per_million(3, 2000, share) for share in (1.0, 0.2)]
    assert found == pytest.approx(expected["value"], abs=expected["tolerance"])
