"""``lightwell bench serve``: a server under load, measured over HTTP as its clients see it.

Streams completions with a fixed number of open connections and reports output tokens per second, TTFT and ITL.
Works against any server with the OpenAI completions API, so that servers can be compared by the same client.
"""

import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from lightwell.errors import StartupError
from lightwell.units import Seconds, Tokens

_START_SECONDS = 60.0
_WORDS = ("river", "stone", "light", "house", "winter", "garden", "letter", "music", "paper", "window", "morning")


@dataclass
class _Answer:
    """One stream as its client saw it. ``arrivals`` are the times of the chunks that carried text."""

    sent: Seconds
    arrivals: list[Seconds]
    tokens: Tokens


def bench_serve(
    model: str,
    url: str | None,
    concurrency: int,
    requests: int,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    threads: int | None,
) -> None:
    """Run the load against ``url``, or against a server started for it, and print what was measured."""

    def run(address: str, count: int, seed: int = 1) -> list[_Answer]:
        return asyncio.run(load(address, model, concurrency, count, prompt_tokens, output_tokens, seed))

    if url is not None:
        print(report(run(url, requests), concurrency))
        return
    with started_server(model, threads) as address:
        run(address, concurrency, seed=0)  # warm-up
        print(report(run(address, requests), concurrency))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started_server(model: str, threads: int | None) -> Iterator[str]:
    """A Lightwell server on a free port for the time of the block; yields its address."""
    port = free_port()
    command = [sys.executable, "-m", "lightwell.cli.main", "serve", model, "--port", str(port)]
    command += ["--threads", str(threads)] if threads else []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_ready(address, process)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server's /health says so. Raises StartupError where it ends first, or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise StartupError(f"The server did not become ready on {address}.")


async def load(
    url: str, model: str, concurrency: int, requests: int, prompt_tokens: Tokens, output_tokens: Tokens, seed: int
) -> list[_Answer]:
    """Send ``requests`` completions, ``concurrency`` at a time, each with a prompt of its own.

    A server that has seen ``seed`` before may have the prompts in its prefix cache.
    """
    waiting = iter(_prompts(requests, prompt_tokens, seed))
    answers: list[_Answer] = []

    async def client(http: httpx.AsyncClient) -> None:
        answers.extend([await _stream(http, model, prompt, output_tokens) for prompt in waiting])

    # A connection for each request: some servers close theirs after a stream in spite of keep-alive.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(concurrency)))
    return answers


def _prompts(count: int, tokens: Tokens, seed: int) -> list[str]:
    """Prompts of about ``tokens`` tokens that share no beginning, the same for the same seed."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(_WORDS) for _ in range(tokens)) for _ in range(count)]


async def _stream(http: httpx.AsyncClient, model: str, prompt: str, output_tokens: Tokens) -> _Answer:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = _Answer(time.perf_counter(), [], 0)
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise StartupError(f"The server answered {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _note(answer, json.loads(line[6:]))
    return answer


def _note(answer: _Answer, chunk: dict[str, object]) -> None:
    choices, usage = chunk.get("choices"), chunk.get("usage")
    if choices:
        answer.arrivals.append(time.perf_counter())
    if isinstance(usage, dict):
        answer.tokens = usage["completion_tokens"]


def output_rate(answers: list[_Answer]) -> float:
    """Output tokens per second, from the first request sent to the last chunk received."""
    begin = min(answer.sent for answer in answers)
    seconds = max(answer.arrivals[-1] for answer in answers) - begin
    return sum(answer.tokens for answer in answers) / seconds


def report(answers: list[_Answer], concurrency: int) -> str:
    """One line: throughput, then TTFT and ITL as p50/p99 in milliseconds."""
    ttft = [answer.arrivals[0] - answer.sent for answer in answers]
    itl = [b - a for answer in answers for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
    return (
        f"{concurrency} streams, {len(answers)} requests: {output_rate(answers):.0f} output tokens/s, "
        f"TTFT {_percentiles(ttft)} ms, ITL {_percentiles(itl)} ms (p50/p99)"
    )


def _percentiles(durations: list[Seconds]) -> str:
    cuts = statistics.quantiles(durations, n=100, method="inclusive") if len(durations) > 1 else durations * 99
    return f"{cuts[49] * 1e3:.1f}/{cuts[98] * 1e3:.1f}"
