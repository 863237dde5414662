"""``lightwell bench batching``: the same requests under static and continuous batching, reserved and paged blocks."""

import json as json_text
import time
from dataclasses import dataclass
from pathlib import Path

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.cli.load import percentile
from lightwell.cli.replay import (
    Arrival,
    ModelledRuntime,
    Outcome,
    Wait,
    accelerator_seconds,
    drawn_trace,
    read_trace,
    replay,
    scaled,
    sleep,
)
from lightwell.cli.table import print_table
from lightwell.engine.clocks import VirtualClock
from lightwell.engine.engine import Engine
from lightwell.engine.options import PolicyOptions, make_policies
from lightwell.engine.policies import SchedulerLimits
from lightwell.engine.scheduler import Scheduler
from lightwell.events import EventLog
from lightwell.runtimes.base import BLOCK_TOKENS
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.units import Seconds, Tokens

WAYS = [
    PolicyOptions(batching="static", kv_allocation="reserved"),
    PolicyOptions(batching="static", kv_allocation="paged"),
    PolicyOptions(batching="continuous", kv_allocation="reserved"),
    PolicyOptions(batching="continuous", kv_allocation="paged"),
]
_VIRTUAL_VOCAB = 1000


@dataclass(frozen=True)
class Work:
    """``windows``: the KV cache holds this many requests of the longest length. ``rate``: requests a second."""

    requests: int
    rate: float
    prompt_scale: float
    context: Tokens
    windows: int

    def arrivals(self, trace: Path | None) -> list[Arrival]:
        found = drawn_trace(self.requests) if trace is None else read_trace(trace, self.requests)
        return scaled(found, self.rate, self.prompt_scale, self.context)

    def limits(self, max_sequences: int) -> SchedulerLimits:
        return SchedulerLimits(
            blocks=self.windows * -(-self.context // BLOCK_TOKENS),
            context_tokens=self.context,
            max_sequences=max_sequences,
        )


# Full-length requests, several a second, on a modelled accelerator; and as many as two CPU cores can read and write in
# about a minute, with prompts scaled down, as such cores read a prompt a hundred times slower but write only a few
# times slower.
VIRTUAL = Work(requests=300, rate=20.0, prompt_scale=1.0, context=4096, windows=8)
REAL = Work(requests=32, rate=20.0, prompt_scale=0.4, context=4096, windows=1)


def bench_batching(
    model: str, trace: Path | None, virtual: bool, requests: int | None, threads: int | None, json: bool
) -> None:
    """Replay the trace in each of the four ways and print what came of it."""
    base = VIRTUAL if virtual else REAL
    work = Work(requests or base.requests, base.rate, base.prompt_scale, base.context, base.windows)
    arrivals = work.arrivals(trace)
    outcomes = run_virtual(work, arrivals) if virtual else _run_real(model, work, arrivals, threads)
    for line in _rows(outcomes) if json else []:
        print(json_text.dumps({"measure": "batching", "virtual": virtual, **line}))
    if not json:
        print_table([list(_HEADING), *[_cells(line) for line in _rows(outcomes)]])


def run_virtual(work: Work, arrivals: list[Arrival]) -> list[Outcome]:
    """In virtual time, on a modelled accelerator."""
    outcomes = []
    for way in WAYS:
        clock = VirtualClock()
        runtime = ModelledRuntime(clock, accelerator_seconds)
        engine = Engine(runtime, Scheduler(work.limits(256), make_policies(way)), EventLog(), clock)
        outcomes.append(replay(engine, arrivals, _VIRTUAL_VOCAB, clock, _passing(clock)))
    return outcomes


def _passing(clock: VirtualClock) -> Wait:
    def wait(seconds: Seconds) -> None:
        clock.now += seconds

    return wait


def _run_real(model: str, work: Work, arrivals: list[Arrival], threads: int | None) -> list[Outcome]:
    checkpoint = open_checkpoint(pull(model))
    runtime, limits = CpuRuntime(threads=threads), work.limits(64)
    runtime.load(checkpoint)
    runtime.allocate(limits.blocks)
    outcomes = []
    for way in WAYS:
        engine = Engine(runtime, Scheduler(limits, make_policies(way)), EventLog(), time.monotonic)
        outcomes.append(replay(engine, arrivals, checkpoint.spec.vocab, time.monotonic, sleep))
    return outcomes


_HEADING = ("batching", "KV allocation", "tokens/s", "ratio", "TTFT p50", "TTFT p99", "KV wasted")


def _rows(outcomes: list[Outcome]) -> list[dict[str, str | float]]:
    """``ratio``: throughput over that of static batching with reserved blocks."""
    first = outcomes[0].tokens_per_second
    return [
        {
            "batching": way.batching,
            "kv_allocation": way.kv_allocation,
            "tokens_per_second": outcome.tokens_per_second,
            "ratio": outcome.tokens_per_second / first,
            "ttft_p50_seconds": percentile(outcome.ttft, 50),
            "ttft_p99_seconds": percentile(outcome.ttft, 99),
            "kv_wasted": outcome.wasted,
        }
        for way, outcome in zip(WAYS, outcomes, strict=True)
    ]


def _cells(row: dict[str, str | float]) -> list[str]:
    batching, allocation, rate, ratio, p50, p99, wasted = row.values()
    return [
        f"{batching}",
        f"{allocation}",
        f"{rate:.0f}",
        f"{ratio:.2f}",
        f"{p50:.1f} s",
        f"{p99:.1f} s",
        f"{wasted:.1%}",
    ]
