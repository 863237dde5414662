"""Limits: exactly so much in each window, for every API, whatever happens between; and waits that are true."""

import asyncio
import math
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.errors import Overloaded, RateLimited
from lightwell.gateway.caller import Caller
from lightwell.gateway.counters import MemoryCounters, RedisCounters, Reservation
from lightwell.gateway.fair_queue import FairQueue
from lightwell.gateway.limits import duration_text, window
from tests.databases import redis_url, running_redis
from tests.gateway.fake_engine import Script, make_client, says

__all__ = ["redis_url"]
CHAT = "/v1/chat/completions"
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}


class Clock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:  # 40 seconds before a minute ends
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(gateway) -> Clock:
    clock = Clock()
    gateway.stages[0]._now = clock
    return clock


async def limit(client, subject: str = "default", **limits) -> None:
    response = await client.put(f"/v1/admin/limits/{subject}", json=limits)
    assert response.status_code == 200, response.text


async def settled(gateway) -> None:
    while gateway.stages[0]._settling:
        await asyncio.sleep(0)


def taken(gateway, measure: str) -> int:
    return sum(value for name, (value, _) in gateway.counters._values.items() if name.startswith(f"{measure}/"))


async def test_requests_of_a_minute(client, gateway, clock):
    await limit(client, requests_per_minute=3)
    lefts = []
    for _ in range(3):
        response = await client.post(CHAT, json=QUESTION)
        lefts.append(response.headers["x-ratelimit-remaining-requests"])
    assert lefts == ["2", "1", "0"]
    refused = await client.post(CHAT, json=QUESTION)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "40"
    assert refused.headers["retry-after-ms"] == "40000"
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "40s"
    clock.now += 39.9
    assert (await client.post(CHAT, json=QUESTION)).status_code == 429
    clock.now += 0.1
    again = await client.post(CHAT, json=QUESTION)
    assert again.status_code == 200
    assert again.headers["x-ratelimit-reset-requests"] == "1m0s"


async def test_tokens_are_reserved_and_settled_to_what_was_used(client, gateway, clock, engine):
    engine.script = lambda request: says("abc")
    response = await client.post(CHAT, json=QUESTION)
    prompt = response.json()["usage"]["prompt_tokens"]
    used = response.json()["usage"]["total_tokens"]
    assert used == prompt + 4
    most = 10 * used + prompt + 20 - used
    await limit(client, tokens_per_minute=most)
    for number in range(1, 11):
        response = await client.post(CHAT, json=QUESTION)
        assert response.status_code == 200
        assert int(response.headers["x-ratelimit-remaining-tokens"]) == most - (number - 1) * used - (prompt + 20)
        await settled(gateway)
    refused = await client.post(CHAT, json=QUESTION)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")


@pytest.mark.parametrize("end", ["left", "failed"])
async def test_what_was_not_used_is_given_back_however_it_ends(gateway, clock, engine, end):
    engine.script = lambda request: Script([97, 60.0] if end == "left" else [97, RuntimeError("broken")])
    async with make_client(gateway) as client:
        await limit(client, tokens_per_minute=10**6, concurrent_requests=1)
        asking = asyncio.create_task(client.post(CHAT, json=QUESTION))
        while not engine.requests or engine.clock < 0.03:
            await asyncio.sleep(0)
        if end == "left":
            asking.cancel()
        await asyncio.wait({asking})
        await settled(gateway)
        engine.script = lambda request: says("x")
        response = await client.post(CHAT, json=QUESTION)
        prompt = response.json()["usage"]["prompt_tokens"]
        left = int(response.headers["x-ratelimit-remaining-tokens"])
    assert left == 10**6 - (prompt + 1) - (prompt + 20)


async def row_of(gateway, answer: str):
    await gateway.ledger.flush()
    return await (await gateway.store.database()).usage.find(answer)


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"n": 2, "best_of": 3}])
@pytest.mark.parametrize("end", ["well", "left", "failed"])
async def test_what_counts_is_what_the_bill_says(gateway, clock, engine, end, more):
    """Of forks, of a prompt that was partly cached, and of an answer that was broken off, too."""
    after = {"well": 257, "left": 60.0, "failed": RuntimeError("broken")}[end]
    engine.script = lambda request: Script([*b"abc", after], cached_tokens=2)
    writing = asyncio.create_task(gateway.ledger.run())
    async with make_client(gateway) as client:
        await client.put("/v1/admin/prices/tiny", json={"input": 3, "cached_input": 1, "output": 7})
        await limit(client, tokens_per_minute=10**6, requests_per_minute=9, dollars_per_month=1)
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 20, **more}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        answers = more.get("best_of", more.get("n", 1))
        while len(engine.requests) < answers or (end == "left" and engine.clock < 0.05 * answers - 0.001):
            await asyncio.sleep(0)
        if end == "left":
            asking.cancel()
        await asyncio.wait({asking})
        await settled(gateway)
        row = await row_of(gateway, engine.requests[0].id.removesuffix("-0"))
    writing.cancel()
    assert row.outcome == {"well": "ok", "left": "aborted", "failed": "failed"}[end]
    assert (row.prompt_tokens, row.cached_tokens) == (6, 2)
    assert row.output_tokens >= 3
    assert taken(gateway, "tokens") == row.prompt_tokens + row.output_tokens
    assert taken(gateway, "dollars") == row.cost > 0
    assert taken(gateway, "requests") == 1


async def test_a_price_that_changes_in_the_middle_is_for_later_requests(gateway, clock, engine):
    gate = asyncio.Event()
    engine.script = lambda request: Script([*b"ab", gate.wait(), 257])
    writing = asyncio.create_task(gateway.ledger.run())
    async with make_client(gateway) as client:
        await client.put("/v1/admin/prices/tiny", json={"input": 0, "output": 1})
        await limit(client, dollars_per_month=1)
        asking = asyncio.create_task(client.post(CHAT, json=QUESTION))
        while not engine.requests:
            await asyncio.sleep(0)
        await client.put("/v1/admin/prices/tiny", json={"input": 0, "output": 50})
        gate.set()
        answer = (await asking).json()
        await settled(gateway)
        row = await row_of(gateway, answer["id"])
    writing.cancel()
    assert (row.output_price, row.cost) == (10**6, 3 * 10**6)
    assert taken(gateway, "dollars") == row.cost


async def test_what_the_line_refuses_took_nothing(gateway, clock, engine):
    gateway.line = gateway.stages[1] = FairQueue(1, 1)
    gate = asyncio.Event()
    engine.script = lambda request: Script([gate.wait(), 97, 257])
    async with make_client(gateway) as client:
        await limit(client, tokens_per_minute=10**6, requests_per_minute=100, concurrent_requests=9)
        open_requests = [asyncio.create_task(client.post(CHAT, json=QUESTION)) for _ in range(2)]
        while gateway.line.waiting < 1:
            await asyncio.sleep(0)
        before = [taken(gateway, measure) for measure in ("tokens", "requests", "concurrent")]
        assert (await client.post(CHAT, json=QUESTION)).status_code == 503
        await settled(gateway)
        assert [taken(gateway, measure) for measure in ("tokens", "requests", "concurrent")] == before
        gate.set()
        await asyncio.gather(*open_requests)


async def test_a_prompt_that_the_engine_never_took_up_is_not_charged(gateway, clock, engine):
    engine.script = lambda request: Script([97, 257])
    engine.refuses = True
    async with make_client(gateway) as client:
        await limit(client, tokens_per_minute=10**6)
        assert (await client.post(CHAT, json=QUESTION)).status_code == 503
        while gateway.ledger._settling or gateway.stages[0]._settling:
            await asyncio.sleep(0)
    assert taken(gateway, "tokens") == 0


async def test_the_wait_is_that_of_the_limit_that_refuses_the_longest(client, gateway, clock):
    await client.put("/v1/admin/prices/tiny", json={"input": 0, "output": 1000})
    await limit(client, "model:tiny", requests_per_minute=1, dollars_per_day=0.03)
    assert (await client.post(CHAT, json=QUESTION | {"max_tokens": 12})).status_code == 200
    refused = await client.post(CHAT, json=QUESTION | {"max_tokens": 25})
    day_ends = window("day", clock.now).end
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert float(refused.headers["retry-after-ms"]) == (day_ends - clock.now) * 1000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


async def test_whoever_waits_for_each_answer_is_never_too_many_at_once(client, gateway, clock, engine):
    """Also where counting takes its time, as over a network."""
    give_back = gateway.counters.give_back

    async def slowly(*arguments) -> None:
        await asyncio.sleep(0.01)
        await give_back(*arguments)

    gateway.counters.give_back = slowly
    await limit(client, concurrent_requests=1)
    for stream in (False, True, False):
        assert (await client.post(CHAT, json=QUESTION | {"stream": stream})).status_code == 200


async def test_what_ends_in_a_later_window_gives_back_to_its_own(gateway, clock, engine):
    gate = asyncio.Event()
    engine.script = lambda request: Script([*b"ab", gate.wait(), 257])
    async with make_client(gateway) as client:
        await limit(client, tokens_per_minute=100)
        asking = asyncio.create_task(client.post(CHAT, json=QUESTION))
        while not engine.requests:
            await asyncio.sleep(0)
        clock.now += 60
        gate.set()
        await asking
        await settled(gateway)
        engine.script = lambda request: says("x")
        response = await client.post(CHAT, json=QUESTION)
    prompt = response.json()["usage"]["prompt_tokens"]
    assert int(response.headers["x-ratelimit-remaining-tokens"]) == 100 - prompt - 20


async def test_requests_at_once(gateway, clock, engine):
    engine.script = lambda request: Script([0.2, 97, 257])
    async with make_client(gateway) as client:
        await limit(client, concurrent_requests=2)
        answers = await asyncio.gather(*(client.post(CHAT, json=QUESTION) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
        await settled(gateway)
        assert (await client.post(CHAT, json=QUESTION)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, QUESTION),
        (CHAT, QUESTION | {"stream": True}),
        ("/v1/completions", {"model": "tiny", "prompt": "a"}),
        ("/v1/messages", QUESTION),
        ("/api/chat", {"model": "tiny", "messages": QUESTION["messages"]}),
    ],
)
async def test_every_api_counts(client, clock, path, body):
    await limit(client, requests_per_minute=1)
    assert (await client.post(path, json=body)).status_code == 200
    refused = await client.post(path, json=body)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "40"


async def test_each_of_key_team_and_model_has_its_own(gateway, clock, monkeypatch):
    def as_caller(key: str, team: str) -> None:
        monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key=key, user=key, team=team, admin=True))

    async with make_client(gateway) as client:
        as_caller("k0", "")
        await limit(client, "key:k1", requests_per_minute=1)
        await limit(client, "team:red", requests_per_minute=2)
        await limit(client, "model:tiny", requests_per_minute=4)
        statuses = []
        for key, team in (
            ("k1", "red"),
            ("k1", "red"),
            ("k2", "red"),
            ("k3", "red"),
            ("k4", ""),
            ("k5", ""),
            ("k6", ""),
        ):
            as_caller(key, team)
            statuses.append((await client.post(CHAT, json=QUESTION)).status_code)
    # The second is over its key's, the fourth over its team's, the last over the model's; refusals take nothing.
    assert statuses == [200, 429, 200, 429, 200, 200, 429]


async def test_the_default_is_for_every_key_by_itself(gateway, clock, monkeypatch):
    async with make_client(gateway) as client:
        await limit(client, requests_per_minute=1)
        for key in ("a", "b"):
            monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key=key, user="u"))
            assert (await client.post(CHAT, json=QUESTION)).status_code == 200
            assert (await client.post(CHAT, json=QUESTION)).status_code == 429


@pytest.mark.parametrize(
    ("limits", "param", "number"),
    [
        ({"prompt_tokens": 3}, "messages", "3"),
        ({"output_tokens": 19}, "max_tokens", "19"),
        ({"tokens_per_minute": 20}, "max_tokens", "20"),
    ],
)
async def test_what_can_never_pass_is_no_matter_of_waiting(client, clock, engine, limits, param, number):
    await limit(client, **limits)
    response = await client.post(CHAT, json=QUESTION)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert number in response.json()["error"]["message"]
    assert "retry-after" not in response.headers
    assert engine.requests == []


async def test_a_budget_is_never_overshot_and_survives_a_restart(gateway, clock, engine, monkeypatch):
    engine.script = lambda request: says("abc")
    writing = asyncio.create_task(gateway.ledger.run())
    async with make_client(gateway) as client:
        await client.put("/v1/admin/prices/tiny", json={"input": 0, "output": 1000})  # a thousandth of a dollar a token
        await limit(client, dollars_per_day=0.05, dollars_per_month=0.07)
        monkeypatch.setattr("time.time", clock)
        spent = 0
        while (response := await client.post(CHAT, json=QUESTION)).status_code == 200:
            await settled(gateway)
            spent += response.json()["usage"]["completion_tokens"]
            assert spent <= 50
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert 30 < spent <= 34
        await gateway.ledger.flush()
        gateway.stages[0]._counters = MemoryCounters()  # as after a restart
        assert (await client.post(CHAT, json=QUESTION)).status_code == 429
        clock.now += 86400
        while (response := await client.post(CHAT, json=QUESTION)).status_code == 200:
            await settled(gateway)
            spent += response.json()["usage"]["completion_tokens"]
        assert 50 < spent <= 54
        assert "month" in response.json()["error"]["message"]
    writing.cancel()


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("nobody", {"requests_per_minute": 1}),
        ("key:a", {}),
        ("key:a", {"requests_per_minute": 0}),
        ("key:a", {"tokens": 5}),
    ],
)
async def test_limits_of_nobody_and_of_nothing_are_refused(client, subject, body):
    response = await client.put(f"/v1/admin/limits/{subject}", json=body)
    assert response.status_code == 400


async def test_limits_are_listed_and_cleared(client):
    await limit(client, "team:red", dollars_per_day=2.5)
    listed = (await client.get("/v1/admin/limits")).json()["data"]
    assert (await client.get("/v1/admin/limits/team:red")).json() == listed[0]
    assert (await client.get("/v1/admin/limits/team:blue")).status_code == 404
    assert listed == [{"object": "limits", "subject": "team:red", "dollars_per_day": 2.5}]
    assert (await client.delete("/v1/admin/limits/team:red")).json()["deleted"]
    assert (await client.delete("/v1/admin/limits/team:red")).status_code == 404


@given(st.sampled_from(["minute", "day", "month"]), st.floats(0, 4e9))
def test_windows_follow_each_other_without_a_gap(period, now):
    this = window(period, now)
    assert this.begin <= now < this.end
    assert window(period, this.begin) == this
    after = window(period, this.end)
    assert (after.begin, after.name != this.name) == (this.end, True)


@given(st.floats(0.0005, 1e6))
def test_durations_can_be_read_back(duration):
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)(ms|s))", duration_text(duration))
    hours, minutes, rest, unit = parts.groups()
    read = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest) * (0.001 if unit == "ms" else 1)
    assert read == pytest.approx(duration, abs=0.001)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "end", "wait"]), st.integers(1, 40), st.integers(0, 40)), max_size=40
)


def follow(counters, operations, limit: int = 100) -> None:
    """Ask, end and wait at random; of each window never more than the limit is taken, and nothing that fits refused."""

    async def run() -> None:
        now, held, taken = 1000.0, [], {}
        for kind, amount, used in operations:
            if kind == "wait":
                now += amount
            elif kind == "ask":
                counter, end = f"tokens/{int(now // 60)}", (now // 60 + 1) * 60
                reservation = await counters.reserve([(counter, amount, limit, end)], now)
                fits = taken.get(counter, 0) + amount <= limit
                assert (not reservation.refused) == fits
                if fits:
                    taken[counter] = taken.get(counter, 0) + amount
                    held.append((reservation, counter, amount))
                    assert reservation.totals == [taken[counter]]
            elif held:
                reservation, counter, amount = held.pop(0)
                taken[counter] -= amount - used
                await counters.give_back(reservation, [(counter, amount - used)], now)

    asyncio.run(run())


@given(OPERATIONS)
def test_counters_in_memory_are_exact(operations):
    follow(MemoryCounters(), operations)


def test_all_are_taken_or_none():
    async def run() -> None:
        counters = MemoryCounters()
        assert (await counters.reserve([("a", 5, 10, 9e9), ("b", 5, 4, 9e9)], 0)).refused == [1]
        assert (await counters.reserve([("a", 11, 10, 9e9), ("b", 1, 4, 9e9), ("c", 2, 1, 9e9)], 0)).refused == [0, 2]
        assert (await counters.reserve([("a", 10, 10, 9e9)], 0)).refused == []

    asyncio.run(run())


@pytest.mark.slow
async def test_redis_counts_as_memory_does(redis_url):
    for seed in range(8):
        counters, memory = RedisCounters(redis_url, f"t{seed}/"), MemoryCounters()
        now, held = 1000.0, []
        for step in range(60):
            counter, end = f"tokens/{int(now // 60)}", (now // 60 + 1) * 60 + 2e9
            amount = (step * 7 + seed) % 40 + 1
            if step % 3 == 2 and held:
                ours, theirs, name, size = held.pop(0)
                await counters.give_back(ours, [(name, size - step % 30)], now)
                await memory.give_back(theirs, [(name, size - step % 30)], now)
            else:
                ours = await counters.reserve([(counter, amount, 100, end)], now)
                theirs = await memory.reserve([(counter, amount, 100, end)], now)
                assert (ours.totals, ours.refused) == (theirs.totals, theirs.refused)
                if not ours.refused:
                    held.append((ours, theirs, counter, amount))
            now += step % 11
        await counters.close()


@pytest.mark.slow
async def test_leases_of_a_dead_gateway_end_by_themselves(redis_url):
    one, two = RedisCounters(redis_url, "lease/"), RedisCounters(redis_url, "lease/")
    entries = [("concurrent/now/key:a", 1, 2, 1001.0)]
    assert (await one.reserve(entries, 1000.0)).refused == []
    alive = await two.reserve(entries, 1000.0)
    assert (await two.reserve(entries, 1000.0)).refused == [0]
    await two.keep_leases(1020.0)
    assert (await two.reserve(entries, 1035.0)).refused == []  # one's is over, two's is not
    assert (await two.reserve(entries, 1035.0)).refused == [0]
    await two.give_back(alive, [("concurrent/now/key:a", 1)], 1036.0)
    assert (await two.reserve(entries, 1036.0)).refused == []
    await one.close()
    await two.close()


HAMMER = """
import asyncio, sys, time
from lightwell.gateway.counters import RedisCounters

async def main():
    counters, taken = RedisCounters(sys.argv[1], "hammer/"), 0
    async def ask():
        nonlocal taken
        for _ in range(50):
            reservation = await counters.reserve([("tokens/x", 7, 1000, time.time() + 60)], time.time())
            if not reservation.refused:
                taken += 3
                await counters.give_back(reservation, [("tokens/x", 4)], time.time())
    await asyncio.gather(*(ask() for _ in range(10)))
    print(taken)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_two_processes_on_one_redis_do_not_overshoot_together(redis_url):
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", HAMMER, redis_url, stdout=asyncio.subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    taken = sum(int(output) for output, _ in outputs)
    assert 1000 - 7 < taken <= 1000


@pytest.mark.slow
async def test_without_redis_nothing_is_let_in(redis_url, gateway):
    import shutil

    with running_redis(shutil.which("redis-server")) as url:
        counters = RedisCounters(url)
        gateway.stages[0]._counters = counters
        async with make_client(gateway) as client:
            await limit(client, requests_per_minute=5)
            assert (await client.post(CHAT, json=QUESTION)).status_code == 200
    async with make_client(gateway) as client:
        refused = await client.post(CHAT, json=QUESTION)
    assert (refused.status_code, "Redis" in refused.json()["error"]["message"]) == (503, True)
    await counters.give_back(Reservation("", [], []), [("a", 1)], 0.0)  # is no error
    await counters.close()


def wanting(tenant: str, tokens: int = 10, priority: int = 0, answers: int = 1):
    request = SimpleNamespace(tokens=[0] * tokens, max_tokens=tokens, priority=priority, fork_of="")
    return SimpleNamespace(
        caller=SimpleNamespace(tenant=tenant),
        width=answers,
        answers=[SimpleNamespace(request=request) for _ in range(answers)],
    )


async def served_order(queue: FairQueue, wants) -> list[int]:
    order = []

    async def use(number: int, generation) -> None:
        async with queue.around(generation):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number, generation) for number, generation in enumerate(wants)))
    return order


async def test_a_thousand_requests_do_not_stand_before_another_tenants_one():
    wants = [*(wanting("many") for _ in range(300)), wanting("one")]
    order = await served_order(FairQueue(4, 1000), wants)
    assert order.index(300) < 10
    assert sorted(order) == list(range(301))


async def test_the_more_urgent_go_first():
    wants = [wanting("a"), *(wanting("a", priority=5) for _ in range(20)), wanting("b", priority=-1)]
    assert (await served_order(FairQueue(1, 1000), wants))[:2] == [0, 21]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(0, 2), st.integers(1, 6)), max_size=40)
)
def test_everybody_is_served_once_and_never_too_many_at_once(wants):
    async def run() -> None:
        queue, running, most = FairQueue(4, 1000), 0, 0

        async def use(want) -> None:
            nonlocal running, most
            size = min(want[3], 4)
            async with queue.around(wanting(*want)):
                running += size
                most = max(most, running)
                await asyncio.sleep(0)
                running -= size

        await asyncio.gather(*map(use, wants))
        assert (most <= 4, queue.waiting, queue._running) == (True, 0, 0)

    asyncio.run(run())


async def test_whoever_leaves_the_line_leaves_no_gap():
    queue, gate = FairQueue(1, 10), asyncio.Event()

    async def use(tenant: str) -> str:
        async with queue.around(wanting(tenant)):
            await gate.wait()
            return tenant

    tasks = [asyncio.create_task(use(name)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert queue.waiting == 2
    gate.set()
    assert [await tasks[n] for n in (0, 2, 3)] == ["a", "c", "d"]
    assert queue._running == 0


async def test_too_many_waiting_are_refused_at_once_with_a_wait():
    clock = [0.0]
    queue = FairQueue(1, 2, lambda: clock[0])
    for _ in range(5):
        clock[0] += 20.0
        async with queue.around(wanting("a")):
            pass
    gate = asyncio.Event()

    async def use() -> None:
        async with queue.around(wanting("a")):
            await gate.wait()

    tasks = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 requests are waiting") as caught:
        async with queue.around(wanting("b")):
            pass
    assert caught.value.retry_after == 20.0
    gate.set()
    await asyncio.gather(*tasks)


async def test_a_full_server_answers_at_once(gateway, engine):
    gateway.line = gateway.stages[1] = FairQueue(1, 1)
    engine.script = lambda request: Script([0.3, 97, 257])
    async with make_client(gateway) as client:
        answers = await asyncio.gather(*(client.post(CHAT, json=QUESTION) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503]
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1


def test_a_wait_is_rounded_up():
    assert math.ceil(RateLimited("x", "requests", 0.2).retry_after) == 1
