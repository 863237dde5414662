"""A server under load, as its clients see it: prompts, a fixed number of open streams, and what the answers say.

Works against any server with the OpenAI completions API, so that servers can be compared by the same client.
"""

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field

import httpx

from lightwell.errors import StartupError
from lightwell.units import Seconds, Tokens

# Each is one token with and without a space before it, in the vocabularies of SmolLM2 and Gemma 3 alike.
_WORDS = ("river", "stone", "light", "house", "winter", "water", "letter", "music", "paper", "window", "story")


@dataclass(frozen=True)
class Load:
    """``requests`` completions, ``streams`` of them open at once; each prompt is ``shared_tokens`` that all begin with
    and ``prompt_tokens`` of its own. ``seed`` draws the words: another one finds nothing of an earlier run cached."""

    streams: int
    requests: int
    prompt_tokens: Tokens
    output_tokens: Tokens
    shared_tokens: Tokens = 0
    seed: int = 7

    def prompts(self) -> list[str]:
        """The same in every run. The shared beginning does not depend on the seed."""
        shared, own = random.Random(0), random.Random(self.seed)
        beginning = [shared.choice(_WORDS) for _ in range(self.shared_tokens)]
        return [
            " ".join([*beginning, *(own.choice(_WORDS) for _ in range(self.prompt_tokens))])
            for _ in range(self.requests)
        ]


@dataclass
class Answer:
    """One stream as its client saw it. ``arrivals`` are the times of the chunks that carried text, on one clock with
    ``sent``."""

    sent: Seconds
    arrivals: list[Seconds] = field(default_factory=list)
    tokens: Tokens = 0


def run_load(url: str, model: str, load: Load) -> list[Answer]:
    """Send the load to the server at ``url``. Raises StartupError where it answers anything but a stream."""
    return asyncio.run(_run_load(url, model, load))


async def _run_load(url: str, model: str, load: Load) -> list[Answer]:
    waiting = iter(load.prompts())
    answers: list[Answer] = []

    async def client(http: httpx.AsyncClient) -> None:
        answers.extend([await _stream(http, model, prompt, load.output_tokens) for prompt in waiting])

    # A connection for each request: some servers close theirs after a stream in spite of keep-alive.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(load.streams)))
    return answers


async def _stream(http: httpx.AsyncClient, model: str, prompt: str, output_tokens: Tokens) -> Answer:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(time.perf_counter())
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise StartupError(f"The server answered {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _note(answer, json.loads(line[6:]))
    return answer


def _note(answer: Answer, chunk: dict[str, object]) -> None:
    choices, usage = chunk.get("choices"), chunk.get("usage")
    if choices:
        answer.arrivals.append(time.perf_counter())
    if isinstance(usage, dict):
        answer.tokens = usage["completion_tokens"]


def metrics(answers: list[Answer]) -> dict[str, float]:
    """Output tokens per second, from the first request sent to the last chunk received; TTFT and ITL in seconds."""
    begin = min(answer.sent for answer in answers)
    seconds = max(answer.arrivals[-1] for answer in answers) - begin
    ttft = [answer.arrivals[0] - answer.sent for answer in answers]
    itl = [b - a for answer in answers for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
    found = {"tokens_per_second": sum(answer.tokens for answer in answers) / seconds}
    for name, durations in (("ttft", ttft), ("itl", itl)):
        if durations:
            found |= {
                f"{name}_p50_seconds": percentile(durations, 50),
                f"{name}_p99_seconds": percentile(durations, 99),
            }
    return found


def percentile(values: list[float], percent: int) -> float:
    """With linear interpolation between neighbours; ``percent`` within 1..99."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
