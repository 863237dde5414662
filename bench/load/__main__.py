"""Measure what the gateway adds to a crowd of streams, beside Starlette doing nothing else.

    python -m bench.load [--streams 1000] [--rate 5000] [--seconds 20] [--rounds 3]

The exit code is 1 where a token was lost or out of order, or a figure is over its bound.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.load.client import Read, read_streams
from bench.load.paced import ALPHABET
from lightwell.cli.load import percentile
from lightwell.units import Seconds

_MOST_ADDED_SECONDS: Seconds = 0.010  # at the 99th percentile of chunks
_MOST_BYTES = 100_000  # of memory for an open stream
_OPENING_SECONDS: Seconds = 1.0  # in which all streams are opened


@dataclass
class Round:
    """``added``: from when the last token of a chunk was made to when the client had the chunk, of those made while all
    streams were open."""

    kind: str
    added: list[Seconds]
    chunks: int
    tokens: int
    bytes_a_stream: float
    cpu_share: float
    faults: list[str]

    def line(self) -> str:
        p50, p99 = percentile(self.added, 50) * 1e3, percentile(self.added, 99) * 1e3
        return (
            f"{self.kind:<10} {self.tokens:>8} tokens in {self.chunks:>7} chunks; added p50 {p50:6.2f} ms, "
            f"p99 {p99:6.2f} ms; {self.bytes_a_stream / 1e3:6.1f} KB a stream; {self.cpu_share:4.0%} of a core"
        )


@contextmanager
def started(kind: str, rate: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "bench.load.server", kind, str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if not (port := process.stdout.readline()):
            raise SystemExit("the server under load did not start: its last words are above")
        yield process, int(port)  # it ends with its standard input


def facts_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return facts


def resident_bytes(process: subprocess.Popen[str]) -> int:
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


async def measure(kind: str, streams: int, rate: float, seconds: Seconds) -> Round:
    tokens = max(int(rate * seconds / streams), 2)
    with started(kind, rate) as (process, port):
        await read_streams(port, 20, 4, 0.0)  # what is loaded at the first request
        before, begun = resident_bytes(process), facts_of(process)
        reading = asyncio.create_task(read_streams(port, streams, tokens, _OPENING_SECONDS / streams))
        await asyncio.sleep(_OPENING_SECONDS + (seconds - _OPENING_SECONDS) / 2)
        open_bytes = resident_bytes(process) - before
        reads = await reading
        ended = facts_of(process)
    made_at: dict[str, list[Seconds]] = ended["made_at"]
    began, ended_at = min(times[0] for times in made_at.values()), max(times[-1] for times in made_at.values())
    all_open = max(times[0] for times in made_at.values()), min(times[-1] for times in made_at.values())
    return Round(
        kind,
        added=[seconds for read in reads for seconds in _added(read, made_at.get(read.name, []), *all_open)],
        chunks=sum(len(read.pieces) for read in reads),
        tokens=sum(len(read.text) for read in reads),
        bytes_a_stream=open_bytes / streams,
        cpu_share=(ended["cpu_seconds"] - begun["cpu_seconds"]) / (ended_at - began),
        faults=[fault for read in reads if (fault := _fault(read, tokens))],
    )


def _fault(read: Read, tokens: int) -> str:
    whole = (ALPHABET * (tokens // len(ALPHABET) + 1))[:tokens]
    if read.error:
        return read.error
    if not read.done:
        return f"{read.name} was broken off after {len(read.text)} tokens"
    return "" if read.text == whole else f"{read.name} has lost or mixed tokens: {read.text[:60]!r}"


def _added(read: Read, made_at: list[Seconds], begin: Seconds, end: Seconds) -> Iterator[Seconds]:
    count = 0
    for text, at in read.pieces:
        count += len(text)
        if count <= len(made_at) and begin <= made_at[count - 1] <= end:
            yield at - made_at[count - 1]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5000, help="tokens a second of all streams together")
    parser.add_argument("--seconds", type=float, default=20, help="how long a round lasts")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turn")
    options = parser.parse_args()
    rounds: list[Round] = []
    for _ in range(options.rounds):
        for kind in ("starlette", "gateway"):
            rounds.append(uvloop.run(measure(kind, options.streams, options.rate, options.seconds)))
            if not rounds[-1].added:
                raise SystemExit("the first stream ended before the last began: give a round more --seconds")
            print(rounds[-1].line(), flush=True)
    ours = [round for round in rounds if round.kind == "gateway"]
    faults = [fault for round in rounds for fault in round.faults]
    added = statistics.median(percentile(round.added, 99) for round in ours)
    memory = statistics.median(round.bytes_a_stream for round in ours)
    for fault in faults[:20]:
        print(f"fault: {fault}")
    print(
        f"gateway, medians: p99 {added * 1e3:.2f} ms (at most {_MOST_ADDED_SECONDS * 1e3:.0f}), "
        f"{memory / 1e3:.1f} KB a stream (at most {_MOST_BYTES / 1e3:.0f}), {len(faults)} faults"
    )
    return int(bool(faults) or added > _MOST_ADDED_SECONDS or memory > _MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
