"""A real server process: ports, signals, clients that leave, and the official client."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from lightwell.errors import StartupError
from lightwell.gateway.listen import listen
from tests.gateway.test_generation_api import error

ROOT = Path(__file__).parents[2]


class Server:
    def __init__(self, shutdown_timeout: float) -> None:
        command = [sys.executable, "-m", "tests.gateway.fake_server", str(shutdown_timeout)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def end(self) -> tuple[int, str, str]:
        """Exit code, output and errors; the process must end by itself."""
        output, errors = self.process.communicate(timeout=20)
        return self.process.returncode, output, errors


@contextmanager
def running(shutdown_timeout: float = 20) -> Iterator[Server]:
    server = Server(shutdown_timeout)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def body(prompt: str, **more) -> dict:
    return {"model": "tiny", "prompt": prompt} | more


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith(name + "{")).split()[-1])


async def until_metric(client: httpx.AsyncClient, name: str, value: float) -> None:
    async with asyncio.timeout(10):
        while await metric(client, name) != value:
            await asyncio.sleep(0.01)


# Ports.


def test_a_taken_port_is_one_clear_line():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartupError, match=rf"^Port {port} on 127.0.0.1 is taken[^\n]*--port\.$"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port).close()


def test_a_port_with_old_connections_can_be_taken_again():
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    client = socket.create_connection(address)
    accepted, _ = listener.accept()
    accepted.close()  # this side closes first, so its address waits for stray packets
    client.close()
    listener.close()
    listen(*address).close()


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0)])
def test_an_address_that_is_not_ours_is_one_clear_line(host, port):
    with pytest.raises(StartupError, match=host) as caught:
        listen(host, port)
    assert "\n" not in caught.value.message


def test_ipv6_is_listened_to():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    probe.close()
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6


# Signals (fault 65).


@asynccontextmanager
async def streaming(server: Server, prompt: str) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncIterator[str]]]:
    """A client, and the events of its open stream after the first one."""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        client.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as stream,
    ):
        lines = stream.aiter_lines()
        assert "begin" in await anext(lines)
        yield client, lines


async def until_draining(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while (health := await client.get("/readyz")).status_code == 200:
            await asyncio.sleep(0.01)
    assert (health.status_code, health.json()["status"]) == (503, "draining")


async def test_the_first_sigterm_drains():
    with running() as server:
        async with streaming(server, "slow 1") as (client, lines):
            server.process.send_signal(signal.SIGTERM)
            await until_draining(client)
            assert (await client.get("/livez")).status_code == 200
            refused = await client.post("/v1/completions", json=body("hi"))
            assert error(refused, 503)["code"] == "overloaded"
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "end" in rest[-3]
        assert server.end() == (0, "open=0 aborted=0\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_the_first_signal(number):
    with running() as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            await client.get("/livez")
            server.process.send_signal(number)
            assert server.end() == (0, "open=0 aborted=0\n", "")


async def test_the_second_signal_stops_at_once():
    with running(shutdown_timeout=600) as server:
        async with streaming(server, "slow 600") as (client, lines):
            server.process.send_signal(signal.SIGINT)
            await until_draining(client)
            server.process.send_signal(signal.SIGINT)
            rest = [line async for line in lines if line]
        assert '"code":"overloaded"' in rest[-1]
        assert server.end() == (0, "open=0 aborted=1\n", "")


async def test_what_outlasts_the_drain_is_cut_with_an_error_event():
    with running(shutdown_timeout=0.2) as server:
        async with streaming(server, "slow 600") as (client, lines):
            whole = asyncio.create_task(client.post("/v1/completions", json=body("slow 600")))
            await until_metric(client, "vllm:num_requests_running", 2)
            server.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
            assert error(await whole, 503)["code"] == "overloaded"
        assert '"code":"overloaded"' in rest[-1]
        code, output, errors = server.end()
        assert (code, output) == (0, "open=0 aborted=2\n")
        assert errors == "2 requests did not finish within 0.2 s\n"


# Clients that leave (fault 61), over a real socket.


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine(server, stream):
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        asked = asyncio.create_task(client.post("/v1/completions", json=body("slow 600", stream=stream)))
        await until_metric(client, "vllm:num_requests_running", 1)
        asked.cancel()
        await until_metric(client, "vllm:num_requests_running", 0)


# The official client.


@pytest.fixture
def api(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_official_client_chats(api):
    messages = [{"role": "user", "content": "hi"}]
    answer = api.chat.completions.create(model="tiny", messages=messages, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "begin end"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].token == "b"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id.startswith("req_")


def test_the_official_client_streams_a_chat(api):
    messages = [{"role": "user", "content": "hi"}]
    stream = api.chat.completions.create(
        model="tiny", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "begin end"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 10
    with api.chat.completions.stream(model="tiny", messages=messages) as helper:
        assert helper.get_final_completion().choices[0].message.content == "begin end"


def test_the_official_client_completes(api):
    answer = api.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["begin", "begin"]
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    chunks = list(api.completions.create(model="tiny", prompt="a", max_tokens=5, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "begin"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_official_client_sees_models_and_errors(api):
    assert [model.id for model in api.models.list()] == ["tiny", "alias"]
    assert api.models.retrieve("tiny").max_model_len == 512
    with pytest.raises(openai.BadRequestError) as caught:
        api.completions.create(model="tiny", prompt="x", suffix="y")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "suffix")
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(openai.NotFoundError):
        api.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="513"):
        api.completions.create(model="tiny", prompt=[1], max_tokens=512)


async def test_many_clients_at_once_get_each_their_own_answer(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:

        async def ask(number: int) -> str:
            stream = await api.completions.create(model="tiny", prompt=f"{number} slow 0.2", stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        assert set(await asyncio.gather(*(ask(number) for number in range(64)))) == {"begin end"}
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert await metric(client, "vllm:num_requests_running") == 0
