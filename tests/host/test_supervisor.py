"""The engine in a real second process, with the fake runtime: streams, aborts, its end. test_survival.py goes on."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, InvalidRequest, Overloaded, StartupError
from lightwell.events import Finished, Sampled, Stepped
from lightwell.host.build import build_engine
from lightwell.host.local import generate
from lightwell.host.messages import EngineConfig
from lightwell.host.supervisor import Supervisor
from lightwell.sampling.params import SamplingParams
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    path = write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")
    return EngineConfig(model=str(path), name="tiny", kv_blocks=64, context_tokens=1024, runtime="fake")


@asynccontextmanager
async def running(config: EngineConfig):
    supervisor = Supervisor(config)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def request(name: str, prompt: int = 10, max_tokens: int = 20) -> Request:
    tokens = [(i * 7 + len(name)) % 250 for i in range(prompt)]
    return Request(name, tokens, SamplingParams(temperature=0), max_tokens)


async def answer(supervisor: Supervisor, ask: Request) -> tuple[list[int], Finished]:
    outcomes = [outcome async for outcome in supervisor.stream(ask)]
    assert isinstance(outcomes[-1], Finished)
    return [outcome.token for outcome in outcomes[:-1]], outcomes[-1]


async def until(condition, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def process_of(supervisor: Supervisor) -> int:
    return supervisor._process.pid


async def test_many_streams_give_what_the_engine_gives_alone(config):
    asks = [request(f"r{i}", prompt=5 + 13 * i, max_tokens=10 + i) for i in range(12)]
    engine, _ = build_engine(config)
    alone = {ask.id: [e.token for e in generate(engine, ask) if isinstance(e, Sampled)] for ask in asks}
    async with running(config) as supervisor:
        answers = await asyncio.gather(*(answer(supervisor, ask) for ask in asks))
    assert {ask.id: tokens for ask, (tokens, _) in zip(asks, answers, strict=True)} == alone
    assert all(finished.reason == "length" for _, finished in answers)


async def test_leaving_a_stream_frees_its_blocks(config):
    async with running(config) as supervisor:
        async for _ in (stream := supervisor.stream(request("long", max_tokens=900))):
            break
        await stream.aclose()
        await answer(supervisor, request("next"))
        assert supervisor.status.used_blocks == 0


async def test_a_request_that_can_never_fit_is_refused_with_the_numbers(config):
    async with running(config) as supervisor:
        with pytest.raises(ContextLengthExceeded) as refused:
            await answer(supervisor, request("huge", prompt=1000, max_tokens=100))
        assert (refused.value.prompt_tokens, refused.value.max_tokens, refused.value.limit_tokens) == (1000, 100, 1024)
        await answer(supervisor, request("after"))


async def test_a_malformed_request_fails_alone(config):
    async with running(config) as supervisor:
        for malformed in (Request("empty", [], SamplingParams(), 5), Request("none", [1], SamplingParams(), 0)):
            with pytest.raises(InvalidRequest):
                await answer(supervisor, malformed)
        await answer(supervisor, request("after"))


async def test_an_engine_that_keeps_dying_is_given_up(config):
    async with running(config) as supervisor:
        for _ in range(5):
            await until(lambda: supervisor.status.phase == "ready")
            os.kill(process_of(supervisor), signal.SIGKILL)
            await until(lambda: supervisor.status.phase != "ready")
        await until(lambda: supervisor.status.phase == "stopped")
        with pytest.raises(Overloaded):
            await answer(supervisor, request("late"))


async def test_the_engine_ignores_the_signals_of_its_group(config):
    async with running(config) as supervisor:
        stream = supervisor.stream(request("s", max_tokens=200))
        await anext(stream)
        os.kill(process_of(supervisor), signal.SIGTERM)
        os.kill(process_of(supervisor), signal.SIGINT)
        assert [outcome async for outcome in stream][-1].output_tokens == 200


async def test_stop_leaves_no_process(config):
    async with running(config) as supervisor:
        pid = process_of(supervisor)
    assert not Path(f"/proc/{pid}").exists()


async def test_a_model_that_cannot_be_read_fails_at_the_start(config, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(config.model).read_bytes()[:5000])
    with pytest.raises(StartupError, match=r"broken\.gguf"):
        await Supervisor(EngineConfig(str(broken), "broken", 8, 256, runtime="fake")).start()


async def test_readers_see_every_event(config):
    seen = []
    async with running(config) as supervisor:
        supervisor.subscribe(seen.extend)
        await answer(supervisor, request("r"))
    assert sum(isinstance(event, Sampled) for event in seen) == 20
    assert sum(isinstance(event, Stepped) for event in seen) >= 20
