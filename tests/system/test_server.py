"""The whole server as a newcomer meets it: a real process, a real model, the official client."""

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from lightwell.cli.bench_serve import free_port, wait_ready
from lightwell.errors import StartupError
from tests.tiny_gguf import write_tiny_gguf

MESSAGES = [{"role": "user", "content": "Say something about the sea."}]


@contextmanager
def server(model: str, *flags: str, log: Path):
    """A server process that is ready; yields its address and process. Its standard error goes to ``log``."""
    port = free_port()
    command = [sys.executable, "-m", "lightwell", "serve", model, "--port", str(port), *flags]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_ready(address, process)
        yield address, process
    except StartupError:
        pytest.fail(log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=2048)


@pytest.fixture(scope="module")
def address(tiny, tmp_path_factory):
    with server(str(tiny), "--served-model-name", "tiny", log=tmp_path_factory.mktemp("log") / "log") as (url, _):
        yield url


@pytest.fixture
def client(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)


def children(process: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def used_blocks(address: str) -> float:
    text = httpx.get(f"{address}/metrics").text
    return float(re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text, re.MULTILINE)[1])


def test_chat_streams_what_it_answers_at_once(client):
    ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "temperature": 0.8, "seed": 5}
    whole = client.chat.completions.create(**ask)
    stream = client.chat.completions.create(**ask, stream=True)
    deltas = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(deltas) == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 30
    assert len(deltas) > 2


def test_completions(client):
    whole = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=20, temperature=0)
    stream = client.completions.create(
        model="tiny", prompt="Once upon a time", max_tokens=20, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    assert client.models.list().data[0].id == "tiny"


def test_a_repeated_prompt_is_read_from_the_cache(client):
    ask = {"model": "tiny", "prompt": "a" * 200, "max_tokens": 4, "temperature": 0}
    cold, warm = client.completions.create(**ask), client.completions.create(**ask)
    assert warm.choices[0].text == cold.choices[0].text
    assert warm.usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens - 1  # one is always computed


def test_overflow_says_the_numbers(client):
    with pytest.raises(openai.BadRequestError, match="2048") as refused:
        client.completions.create(model="tiny", prompt="a" * 2040, max_tokens=20)
    assert refused.value.code == "context_length_exceeded"


async def test_a_crowd_with_cancellations(tiny, tmp_path):
    """500 requests at once, a third cancelled at random moments: the others are right and nothing leaks."""
    draw = random.Random(3)
    asks = [
        {"prompt": f"{i} " + "x" * draw.randrange(1, 400), "max_tokens": draw.randrange(1, 60), "temperature": 0}
        for i in range(500)
    ]
    cancelled = set(draw.sample(range(500), 167))
    log = tmp_path / "log"
    with server(str(tiny), "--served-model-name", "tiny", log=log) as (address, _):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:

            async def ask(number: int, *, stream: bool) -> str:
                body = {"model": "tiny", **asks[number], "stream": stream}
                response = await http.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                return response.text if stream else response.json()["choices"][0]["text"]

            async def leave(number: int) -> None:
                with pytest.raises((TimeoutError, asyncio.CancelledError)):
                    async with asyncio.timeout(draw.uniform(0, 1.0)):
                        await ask(number, stream=bool(number % 2))
                        raise TimeoutError  # it was faster than its own cancellation, which is fine too

            together = await asyncio.gather(*(leave(n) if n in cancelled else ask(n, stream=False) for n in range(500)))
            for number in draw.sample(sorted(set(range(500)) - cancelled), 60):
                assert await ask(number, stream=False) == together[number]
            assert used_blocks(address) == 0
    assert not re.search("WARNING|ERROR|Traceback", log.read_text()), log.read_text()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_blocks(address, streamed):
    ask = {
        "model": "tiny",
        "prompt": "left",
        "max_tokens": 1900,
        "temperature": 0,
        "ignore_eos": True,
        "stream": streamed,
    }
    if streamed:
        with httpx.stream("POST", f"{address}/v1/completions", json=ask) as response:
            lines = response.iter_lines()
            next(lines)
            assert used_blocks(address) > 0
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/completions", json=ask, timeout=0.1)
    deadline = time.monotonic() + 5
    while used_blocks(address) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert used_blocks(address) == 0


@pytest.mark.parametrize("draining", [True, False], ids=["first signal drains", "second stops at once"])
def test_sigterm(tiny, tmp_path, draining):
    with server(str(tiny), "--served-model-name", "tiny", log=tmp_path / "log") as (address, process):
        engines = children(process)
        body = {
            "model": "tiny",
            "prompt": "x",
            "max_tokens": 1500,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            if draining:
                assert httpx.get(f"{address}/readyz").status_code == 503
                assert list(lines)[-2] == "data: [DONE]"
            else:
                time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert engines
        assert not any(Path(f"/proc/{pid}").exists() for pid in engines)


def test_requests_wait_for_an_engine_that_is_restarted(tiny, tmp_path):
    with server(str(tiny), "--served-model-name", "tiny", log=tmp_path / "log") as (address, process):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)
        ask = {"model": "tiny", "prompt": "again", "max_tokens": 10, "temperature": 0}
        before = client.completions.create(**ask).choices[0].text
        os.kill(children(process)[0], signal.SIGKILL)
        assert client.completions.create(**ask).choices[0].text == before


def test_a_server_whose_engine_keeps_dying_exits(tiny, tmp_path):
    with server(str(tiny), "--served-model-name", "tiny", log=tmp_path / "log") as (_, process):
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            for engine in children(process):
                os.kill(engine, signal.SIGKILL)
            time.sleep(0.02)
        assert process.wait(1) == 1
    assert "giving up" in (tmp_path / "log").read_text().splitlines()[-1]


def fails(*flags: str) -> str:
    """Standard error of a server that must refuse to start: one line, exit code 1."""
    command = [sys.executable, "-m", "lightwell", "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_cannot_start_says_why_in_one_line(tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in fails(str(tiny), "--port", port)
    assert "smollm2" in fails("smolm2", "--port", "0")
    assert "nowhere.gguf" in fails(str(tmp_path / "nowhere.gguf"), "--port", "0")
    assert "memory" in fails(str(tiny), "--port", "0", "--kv-cache-memory", "4TiB")
    assert "port" in fails(str(tiny), "--port", "-1")


@pytest.mark.slow
def test_the_default_model_answers_sensibly(smollm2, tmp_path):
    with server(str(smollm2), "--served-model-name", "smollm2", log=tmp_path / "log") as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)
        question = [{"role": "user", "content": "What color is the sky?"}]
        chat = client.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=40)
        assert "blue" in chat.choices[0].message.content


@pytest.mark.slow
def test_a_base_model_completes_but_does_not_chat(gemma3, tmp_path):
    with server(str(gemma3), "--served-model-name", "gemma", log=tmp_path / "log") as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)
        text = client.completions.create(
            model="gemma", prompt="Monday, Tuesday, Wednesday,", max_tokens=5, temperature=0
        )
        assert "Thursday" in text.choices[0].text
        with pytest.raises(openai.BadRequestError, match="--chat-template"):
            client.chat.completions.create(model="gemma", messages=MESSAGES)
