"""Engines in real processes that are killed, hang, or die of a request: streams go on with the same bytes."""

import asyncio
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from lightwell.engine.request import Request
from lightwell.errors import EngineDied, KillsEngine, Overloaded
from lightwell.events import Admitted, Died, Finished, Loaded, Queued, Reused, Sampled, Stepped
from lightwell.host import supervisor as supervisor_module
from lightwell.host.messages import EngineConfig
from lightwell.host.process import WorkerProcess
from lightwell.host.supervisor import Supervisor
from lightwell.runtimes.fake import FakeModel, slow_reference
from lightwell.sampling.params import SamplingParams
from tests.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).parents[2]
MODEL = FakeModel(vocab=260)  # the tiny model's
POISON = 259
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    path = write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")
    return EngineConfig(model=str(path), name="tiny", kv_blocks=256, context_tokens=1024, runtime="fake")


@pytest.fixture
def mortal(monkeypatch):
    """``mortal("kill", 0.001)``: engines from now on die so of the token POISON; every other step takes this long."""

    def use(how: str, pause: float = 0.001) -> None:
        monkeypatch.setenv("MORTAL", f"{how} {POISON} {pause}")
        monkeypatch.setattr(supervisor_module, "spawn_worker", lambda: spawn("tests.host.mortal_worker"))

    return use


def spawn(module: str) -> WorkerProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stderr=subprocess.DEVNULL)
        return WorkerProcess(ours, process)


@asynccontextmanager
async def running(config: EngineConfig, **options):
    supervisor = Supervisor(config, **options)
    seen = []
    supervisor.subscribe(seen.extend)
    await supervisor.start()
    try:
        yield supervisor, seen
    finally:
        await supervisor.stop()
        assert not Path(f"/proc/{supervisor._process.pid}").exists()


def healthy(name: str, number: int, max_tokens: int = 60, **more) -> Request:
    """A request that never comes upon the poison; greedy or sampled by its number."""
    sampling = GREEDY if number % 2 else SamplingParams(temperature=0.9, seed=number)
    for first in range(256):
        tokens = [first, *((number * 31 + i * 7) % 250 for i in range(3 + 17 * number))]
        if POISON not in slow_reference(tokens, max_tokens, sampling, MODEL):
            return Request(name, tokens, sampling, max_tokens, **more)
    raise AssertionError("every first token leads to the poison")


def expected(request: Request) -> list[int]:
    return slow_reference(request.tokens, request.max_tokens, request.sampling, MODEL)


async def answer(supervisor: Supervisor, ask: Request) -> tuple[list[int], Finished]:
    outcomes = [outcome async for outcome in supervisor.stream(ask)]
    assert isinstance(outcomes[-1], Finished)
    return [outcome.token for outcome in outcomes[:-1]], outcomes[-1]


async def until(condition, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def kill(supervisor: Supervisor) -> None:
    os.kill(supervisor._process.pid, signal.SIGKILL)


def of(seen: list, kind: type, name: str | None = None) -> list:
    return [event for event in seen if isinstance(event, kind) and name in (None, getattr(event, "request", None))]


async def test_killed_again_and_again_streams_go_on_with_the_same_tokens(config, mortal):
    """Fault 25: seeded ones too, across restarts."""
    mortal("kill")
    asks = [healthy(f"r{n}", n, max_tokens=100) for n in range(10)]
    draw = random.Random(4)
    async with running(config) as (supervisor, seen):
        answers = asyncio.gather(*(answer(supervisor, ask) for ask in asks))
        for kills in range(1, 8):  # more often than engines may die in vain
            enough = len(of(seen, Sampled)) + draw.randrange(1, 60)
            await until(lambda enough=enough: len(of(seen, Sampled)) >= enough)
            kill(supervisor)
            await until(lambda kills=kills: len(of(seen, Died)) == kills)
        for ask, (tokens, finished) in zip(asks, await answers, strict=True):
            assert tokens == expected(ask)
            assert (finished.reason, finished.prompt_tokens, finished.output_tokens) == ("length", len(ask.tokens), 100)
    for ask in asks:
        assert len(of(seen, Queued, ask.id)) == len(of(seen, Finished, ask.id)) == 1
        assert [event.resumed for event in of(seen, Admitted, ask.id)].count(False) == 1
        assert [event.token for event in of(seen, Sampled, ask.id)] == expected(ask)
    assert len(of(seen, Loaded)) == 8
    assert {event.how for event in of(seen, Died)} == {"SIGKILL"}


async def test_what_was_cached_at_first_is_what_is_reported(config, mortal):
    mortal("kill", 0.005)
    async with running(config) as (supervisor, seen):
        await answer(supervisor, healthy("first", 7, max_tokens=1))
        late = asyncio.create_task(answer(supervisor, healthy("second", 7, max_tokens=60)))
        await until(lambda: of(seen, Sampled, "second"))
        kill(supervisor)
        _, finished = await late
        (reused,) = of(seen, Reused, "second")  # the part of a block that follows the whole ones
        assert finished.cached_tokens == of(seen, Admitted, "second")[0].cached_tokens + reused.tokens > reused.tokens
        assert len(of(seen, Admitted, "second")) == 2


@pytest.mark.parametrize("how", ["half", "garble", "raise"])
async def test_however_an_engine_ends_only_the_guilty_is_failed(config, mortal, how):
    mortal(how)
    async with running(config) as (supervisor, seen):
        innocent = asyncio.gather(*(answer(supervisor, healthy(f"r{n}", n, max_tokens=150)) for n in range(4)))
        with pytest.raises(KillsEngine, match="guilty") as failed:
            await answer(supervisor, Request("guilty", [1, 2, POISON, 3], GREEDY, 10))
        assert (failed.value.status, failed.value.code) == (500, "engine_died")
        for number, (tokens, _) in enumerate(await innocent):
            assert tokens == expected(healthy(f"r{number}", number, max_tokens=150))
        assert [event.reason for event in of(seen, Finished, "guilty")] == ["error"]
        assert len(of(seen, Died)) <= 5


async def test_a_request_that_kills_alone_is_failed_at_its_second_death(config, mortal):
    mortal("kill")
    async with running(config) as (supervisor, seen):
        for round in (1, 2):
            with pytest.raises(KillsEngine):
                await answer(supervisor, Request(f"guilty{round}", [POISON], GREEDY, 10))
            assert len(of(seen, Died)) == 2 * round
            tokens, _ = await answer(supervisor, healthy(f"r{round}", round))
            assert tokens == expected(healthy("r", round))


async def test_a_request_that_kills_late_keeps_its_tokens_until_then(config, mortal):
    mortal("kill")
    first = next(n for n in range(250) if POISON in slow_reference([n, 5], 60, GREEDY, MODEL)[8:-1])
    until_death = slow_reference([first, 5], 60, GREEDY, MODEL)
    until_death = until_death[: until_death.index(POISON) + 1]
    async with running(config) as (supervisor, seen):
        with pytest.raises(KillsEngine):
            await answer(supervisor, Request("late", [first, 5], GREEDY, 60))
        assert [event.token for event in of(seen, Sampled, "late")] == until_death
        assert [event.output_tokens for event in of(seen, Finished, "late")] == [len(until_death)]


async def test_an_offload_file_that_fails_costs_no_stream_its_bytes(config, tmp_path, monkeypatch):
    """What the file system says no to ends the engine, as what its blocks hold is not known any more; the next engine
    has a file of its own. All that stands in an answer is computed again."""
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    real = structs.replace(config, runtime="cpu", threads=1, kv_blocks=24)
    asks = [
        Request(f"r{n}", [(n * 31 + i * 7) % 250 for i in range(150)], SamplingParams(seed=n), 300) for n in range(6)
    ]
    async with running(real) as (supervisor, _):
        undisturbed = [(await answer(supervisor, ask))[0] for ask in asks]
    monkeypatch.setattr(supervisor_module, "spawn_worker", lambda: spawn("tests.host.offloading_worker"))
    async with running(structs.replace(real, kv_offload=1 << 20)) as (supervisor, seen):
        answers = asyncio.gather(*(answer(supervisor, ask) for ask in asks))
        await until(lambda: sum(event.offloaded_blocks for event in of(seen, Stepped)) > 2)
        resource.prlimit(supervisor._process.pid, resource.RLIMIT_FSIZE, (0, 0))  # no file may be written any more
        assert [tokens for tokens, _ in await answers] == undisturbed
        assert [event.how for event in of(seen, Died)] == ["exit code 1"]


async def test_an_engine_that_hangs_is_killed(config, mortal):
    mortal("hang")
    async with running(config, step_timeout=0.5) as (supervisor, seen):
        innocent = asyncio.create_task(answer(supervisor, healthy("innocent", 3, max_tokens=100)))
        with pytest.raises(KillsEngine):
            await answer(supervisor, Request("guilty", [POISON], GREEDY, 10))
        tokens, _ = await innocent
        assert tokens == expected(healthy("innocent", 3, max_tokens=100))
        assert of(seen, Died)


async def test_an_idle_engine_is_not_taken_for_one_that_hangs(config):
    async with running(config, step_timeout=0.1) as (supervisor, seen):
        await asyncio.sleep(0.5)
        await answer(supervisor, healthy("r", 1))
        await asyncio.sleep(0.5)
        assert not of(seen, Died)


async def test_requests_that_come_while_there_is_no_engine_wait_for_it(config):
    async with running(config) as (supervisor, seen):
        kill(supervisor)
        await until(lambda: supervisor.status.phase == "restarting")
        asks = [healthy(f"r{n}", n) for n in range(5)]
        waiting = [asyncio.create_task(answer(supervisor, ask)) for ask in asks]
        gone = asyncio.create_task(answer(supervisor, healthy("gone", 9)))
        await until(lambda: len(of(seen, Queued)) == 6)
        assert supervisor.status.waiting == 6
        gone.cancel()
        for ask, task in zip(asks, waiting, strict=True):
            assert (await task)[0] == expected(ask)
        assert [event.reason for event in of(seen, Finished, "gone")] == ["abort"]
        assert not of(seen, Admitted, "gone")


async def test_no_more_than_so_many_wait_for_an_engine(config):
    """A restart must not let a line grow without end; the line is open again once an engine is there."""
    async with running(config, most_waiting=3) as (supervisor, seen):
        kill(supervisor)
        await until(lambda: supervisor.status.phase == "restarting")
        waiting = [asyncio.create_task(answer(supervisor, healthy(f"r{n}", n))) for n in range(3)]
        await until(lambda: supervisor.status.waiting == 3)
        with pytest.raises(Overloaded, match="3 requests wait for it already"):
            await answer(supervisor, healthy("more", 4))
        assert not of(seen, Queued, "more")
        assert [(await task)[0] for task in waiting] == [expected(healthy(f"r{n}", n)) for n in range(3)]
        assert (await answer(supervisor, healthy("more", 4)))[0] == expected(healthy("more", 4))


async def test_a_stream_that_was_left_ends_for_readers_even_where_its_engine_died(config, mortal):
    mortal("kill")
    async with running(config) as (supervisor, seen):
        async for _ in (stream := supervisor.stream(healthy("left", 2, max_tokens=900))):
            break
        os.kill(supervisor._process.pid, signal.SIGSTOP)  # so that it cannot read what comes
        await stream.aclose()
        kill(supervisor)
        await until(lambda: of(seen, Died))
        await until(lambda: of(seen, Finished, "left"))
        assert [event.reason for event in of(seen, Finished, "left")] == ["abort"]
        await answer(supervisor, healthy("next", 1))
        assert supervisor.status.used_blocks == 0


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.2, 0.4])
async def test_stopping_while_an_engine_is_restarted_ends_everything(config, mortal, wait):
    mortal("kill")
    async with running(config) as (supervisor, seen):
        open_ = asyncio.create_task(answer(supervisor, healthy("open", 1, max_tokens=900)))
        await until(lambda: of(seen, Sampled))
        kill(supervisor)
        await until(lambda: supervisor.status.phase == "restarting")
        await asyncio.sleep(wait)
        await supervisor.stop()
        with pytest.raises(EngineDied, match="stopping"):
            await open_
        with pytest.raises(Overloaded):
            await answer(supervisor, healthy("late", 1))


async def test_an_engine_that_cannot_be_started_again_is_given_up(config, monkeypatch):
    """Killed while they load, too: what is open ends with an error, and a message says so."""

    def spawn() -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            return WorkerProcess(ours, subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))

    async with running(config) as (supervisor, seen):
        monkeypatch.setattr(supervisor_module, "spawn_worker", spawn)
        open_ = asyncio.create_task(answer(supervisor, healthy("open", 1, max_tokens=900)))
        await until(lambda: of(seen, Sampled))
        kill(supervisor)
        with pytest.raises(EngineDied, match="giving up"):
            await open_
        await supervisor.given_up()
        assert supervisor.status.phase == "stopped"
        assert [event.reason for event in of(seen, Finished, "open")] == ["error"]


async def test_an_engine_killed_while_it_loads_is_started_once_more(config, mortal):
    mortal("kill")
    async with running(config) as (supervisor, seen):
        ask = healthy("r", 3, max_tokens=100)
        open_ = asyncio.create_task(answer(supervisor, ask))
        await until(lambda: of(seen, Sampled))
        kill(supervisor)
        pid = supervisor._process.pid
        await until(lambda: supervisor._process.pid != pid)
        kill(supervisor)
        assert (await open_)[0] == expected(ask)
        assert len(of(seen, Died)) == 1
        assert len(of(seen, Loaded)) == 2
