"""Kill the engine again and again under a crowd of streams, and see that each gets what it would have got in peace.

    python -m bench.chaos [--model smollm2] [--streams 64] [--kills 20] [--seed 1]

Streams ask one request after the other (greedy, seeded, unseeded, with log-probabilities, penalties, JSON, n=2 ...)
until the last kill, and end theirs. Then all of it is asked once more, undisturbed, unseeded requests with the seed
that the server said it drew. The exit code is 1 where an answer is missing or differs in a byte.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from lightwell.cli.bench_serve import free_port, serve_command, wait_ready
from lightwell.units import Seconds, Tokens

_WORDS = ("river", "stone", "light", "house", "winter", "water", "letter", "music", "paper", "window", "story")
_IN_FLIGHT_SECONDS = 0.1  # what arrives within this after a kill was sent before it; no engine starts so quickly
_PATIENCE_SECONDS = 120.0  # for tokens after a kill
_LONGEST: Tokens = 160

Body = dict[str, Any]
# What each kind of request asks for besides its prompt. Those that the server does not have are left out.
KINDS: dict[str, Body] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 1234},
    "unseeded": {"temperature": 1.0},
    "logprobs": {"temperature": 0.8, "top_k": 40, "logprobs": 2},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "min_tokens": 20},
    "echo": {"temperature": 0, "echo": True, "logprobs": 1},
    "n=2": {"temperature": 0.9, "n": 2},
    "JSON": {"temperature": 0.7, "response_format": {"type": "json_object"}},
}


@dataclass(frozen=True)
class Ask:
    kind: str
    body: Body

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if "messages" in self.body else "/v1/completions"


@dataclass
class Told:
    """What a stream was told: its choices, how it ended (None: it did not), and when chunks arrived after ``sent``."""

    ask: Ask
    sent: Seconds
    choices: dict[int, list[Any]] = field(default_factory=dict)
    usage: Any = None
    error: str | None = None
    arrivals: list[Seconds] = field(default_factory=list)

    @property
    def content(self) -> tuple[Any, ...]:
        """What must be the same in peace."""
        return self.choices, self.usage, self.error

    @property
    def longest_pause(self) -> Seconds:
        times = [self.sent, *self.arrivals]
        return max((later - at for at, later in pairwise(times)), default=0.0)


@dataclass
class Heard:
    """When chunks arrived, of all streams."""

    arrivals: list[Seconds] = field(default_factory=list)

    async def again(self, kill: Seconds) -> None:
        """Wait until chunks arrive from an engine that was started after the kill."""
        while not self.arrivals or self.arrivals[-1] < kill + _IN_FLIGHT_SECONDS:
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Report:
    kinds: Counter[str]
    left_out: dict[str, str]
    failures: list[str]
    longest_pause: Seconds
    recoveries: list[Seconds]
    kills: int

    def __str__(self) -> str:
        asked = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        lines = [f"{self.kills} kills, {self.kinds.total()} streams: {asked}"]
        lines += [f"left out: {kind} ({why})" for kind, why in self.left_out.items()]
        lines.append(f"longest pause of a stream: {self.longest_pause:.2f} s")
        if self.recoveries:
            middle, most = statistics.median(self.recoveries), max(self.recoveries)
            lines.append(f"from kill to tokens again: median {middle:.2f} s, longest {most:.2f} s")
            lines.append(f"kills that were followed by another one before that: {self.kills - len(self.recoveries)}")
        lines += [*self.failures[:10], f"{len(self.failures)} streams differ from the undisturbed run"]
        return "\n".join(lines)


@contextmanager
def serving(model: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server for the time of the block; where that fails, what the server said is printed."""
    port = free_port()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(serve_command(model, port, None), stdout=subprocess.DEVNULL, stderr=said)
        try:
            wait_ready(address := f"http://127.0.0.1:{port}", process)
            yield address, process
        except BaseException:
            said.seek(0)
            print(said.read().decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait()


async def chaos(model: str, streams: int, kills: int, seed: int) -> Report:
    """Both runs, against one server. ``streams`` are open at any time until the last kill."""
    limits = httpx.Limits(max_connections=None)
    with serving(model) as (address, server):
        async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as http:
            left_out = await missing(http, model)
            kinds = [kind for kind in KINDS if kind not in left_out]
            done, heard = asyncio.Event(), Heard()
            crowd = [
                asyncio.create_task(client(http, model, kinds, random.Random(f"{seed} {number}"), done, heard))
                for number in range(streams)
            ]
            killed = await kill_engines(server, kills, random.Random(seed), heard)
            done.set()
            told = [answer for answers in await asyncio.gather(*crowd) for answer in answers]
            print(f"{kills} kills under {len(told)} streams; the same in peace ...", flush=True)
            peace = await in_peace(http, [answer.ask for answer in told], streams)
    return Report(
        kinds=Counter(answer.ask.kind for answer in told),
        left_out=left_out,
        failures=[failure(*pair) for pair in zip(told, peace, strict=True) if differ(*pair)],
        longest_pause=max(answer.longest_pause for answer in told),
        recoveries=recoveries(killed, heard.arrivals),
        kills=len(killed),
    )


async def missing(http: httpx.AsyncClient, model: str) -> dict[str, str]:
    """The kinds that this server refuses, with what it says."""
    refused = {}
    for kind in KINDS:
        told = await stream(http, make_ask(model, kind, random.Random(0), _LONGEST // 4), Heard())
        if told.error is not None and "unsupported_parameter" not in told.error:
            raise SystemExit(f"{kind}: {told.error}")
        if told.error is not None:
            refused[kind] = "not supported by this server"
    return refused


async def client(
    http: httpx.AsyncClient, model: str, kinds: list[str], draw: random.Random, done: asyncio.Event, heard: Heard
) -> list[Told]:
    told = []
    while not done.is_set():
        ask = make_ask(model, draw.choice(kinds), draw, draw.randrange(_LONGEST // 4, _LONGEST))
        told.append(await stream(http, ask, heard))
    return told


def make_ask(model: str, kind: str, draw: random.Random, max_tokens: Tokens) -> Ask:
    text = " ".join(draw.choices(_WORDS, k=draw.randrange(4, 30)))
    prompt = {"messages": [{"role": "user", "content": f"As JSON: {text}"}]} if kind == "JSON" else {"prompt": text}
    body = {
        "model": model,
        **prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **KINDS[kind],
    }
    return Ask(kind, body | ({} if kind == "JSON" else {"ignore_eos": True}))


async def stream(http: httpx.AsyncClient, ask: Ask, heard: Heard) -> Told:
    """Ask, and note what comes. The ask that is returned has the seed that the server drew."""
    told = Told(ask, time.monotonic())
    try:
        async with http.stream("POST", ask.path, json=ask.body) as response:
            if response.status_code != 200:
                told.error = f"{response.status_code}: {(await response.aread()).decode()}"
                return told
            told.ask = replace(ask, body=ask.body | {"seed": int(response.headers["x-lightwell-seed"])})
            told.error = "it ended without [DONE]"
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    told.error = None
                elif line:
                    note(told, json.loads(line.removeprefix("data: ")), heard)
    except httpx.HTTPError as error:
        told.error = repr(error)
    return told


def note(told: Told, chunk: dict[str, Any], heard: Heard) -> None:
    if "error" in chunk:
        raise httpx.StreamError(chunk["error"]["message"])
    told.arrivals.append(time.monotonic())
    heard.arrivals.append(told.arrivals[-1])
    if chunk["usage"] is not None:
        told.usage = chunk["usage"] | {"prompt_tokens_details": None}  # what was cached is no part of the answer
    for choice in chunk["choices"]:
        said = told.choices.setdefault(choice["index"], ["", [], None])
        said[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        said[1] += (choice["logprobs"] or {}).get("token_logprobs", [])
        said[2] = choice["finish_reason"] or said[2]


async def kill_engines(server: subprocess.Popen[bytes], kills: int, draw: random.Random, heard: Heard) -> list[Seconds]:
    """Kill the engine this often at random moments, one in four of them soon after the last, mostly while it loads;
    returns when."""
    times: list[Seconds] = []
    while len(times) < kills:
        if times and draw.random() < 0.25:
            await asyncio.sleep(draw.uniform(0, 0.6))
        else:
            await asyncio.wait_for(heard.again(times[-1] if times else 0.0), _PATIENCE_SECONDS)
            await asyncio.sleep(draw.uniform(0, 4))
        if server.poll() is not None:
            raise SystemExit(f"The server ended with exit code {server.returncode} after {len(times)} kills.")
        for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
            times.append(time.monotonic())
            print(f"kill {len(times)}", flush=True)
    return times


async def in_peace(http: httpx.AsyncClient, asks: list[Ask], streams: int) -> list[Told]:
    gate = asyncio.Semaphore(streams)

    async def ask_one(ask: Ask) -> Told:
        async with gate:
            return await stream(http, ask, Heard())

    return await asyncio.gather(*(ask_one(ask) for ask in asks))


def differ(told: Told, peace: Told) -> bool:
    return told.error is not None or told.content != peace.content


def failure(told: Told, peace: Told) -> str:
    return f"{told.ask.kind} {told.ask.body}:\n  under kills: {told.content}\n  in peace:    {peace.content}"


def recoveries(killed: list[Seconds], arrivals: list[Seconds]) -> list[Seconds]:
    """For each kill before whose successor tokens came: how long that took."""
    found = []
    for kill, following in zip(killed, [*killed[1:], float("inf")], strict=True):
        after = [at - kill for at in arrivals if kill + _IN_FLIGHT_SECONDS < at < following]
        if after:
            found.append(min(after))
    return found


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the prompts and of the moments")
    options = parser.parse_args(words)
    report = asyncio.run(chaos(options.model, options.streams, options.kills, options.seed))
    print(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
