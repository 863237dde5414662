"""``lightwell bench stall``: a long prompt arrives beside decoding streams; how long these wait for their tokens.

With --target-itl and without take turns, in one process with one runtime, so that what the machine does besides meets
both alike. A time between tokens is that between two events of the engine, before any HTTP.
"""

import json as json_text
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.cli.load import percentile
from lightwell.engine.engine import Engine
from lightwell.engine.options import PolicyOptions
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler
from lightwell.errors import StartupError
from lightwell.events import EventLog, Sampled
from lightwell.host.build import make_runtime, scheduler_limits, steered_policies
from lightwell.host.memory import blocks_for
from lightwell.host.messages import EngineConfig
from lightwell.runtimes.base import Runtime
from lightwell.sampling.params import SamplingParams
from lightwell.units import Seconds, Tokens

_SHORT_PROMPT: Tokens = 32
_STEADY_STEPS = 8  # before the long prompt arrives
_SEED = 7


@dataclass(frozen=True)
class Stall:
    """``streams`` answers are being written when a prompt of ``prompt_tokens`` arrives."""

    streams: int
    prompt_tokens: Tokens
    target_itl: Seconds
    repeat: int


@dataclass
class Waits:
    """Seconds between tokens of the streams while the prompt was read, and how long reading it took."""

    between: list[Seconds]
    prefills: list[Seconds]


def bench_stall(model: str, stall: Stall, threads: int | None, json: bool) -> bool:
    """Print both kinds; returns whether the target kept the 99th percentile under twice itself."""
    path = pull(model)
    checkpoint = open_checkpoint(path)
    vocab, context = checkpoint.spec.vocab, checkpoint.spec.context_tokens
    if stall.prompt_tokens + 1 > context:
        raise StartupError(f"A prompt of {stall.prompt_tokens} tokens does not fit {context} tokens of context.")
    config = _config(path, model, stall, context, threads)
    runtime = make_runtime(config)
    runtime.load(checkpoint)
    runtime.allocate(config.kv_blocks)
    kinds = {"with": Waits([], []), "without": Waits([], [])}
    targets = {"with": stall.target_itl, "without": None}
    for round in range(stall.repeat):
        for name, waits in kinds.items():
            engine = _engine(config, runtime, targets[name])
            _measure(engine, stall, vocab, _SEED + round, waits)
    for name, waits in kinds.items():
        print(_report(name, stall, waits, json))
    return percentile(kinds["with"].between, 99) < 2 * stall.target_itl


def _config(path: Path, name: str, stall: Stall, context: Tokens, threads: int | None) -> EngineConfig:
    """Room for the prompt, and for streams that outlast its reading however slow that is."""
    blocks = blocks_for(stall.prompt_tokens + 1) + stall.streams * blocks_for(context)
    return EngineConfig(
        model=str(path), name=name, kv_blocks=blocks, context_tokens=context, threads=threads, prefix_cache=False
    )


def _engine(config: EngineConfig, runtime: Runtime, target: Seconds | None) -> Engine:
    """A scheduler of its own over the runtime that all share."""
    config = structs.replace(config, policies=PolicyOptions(target_itl=target))
    limits = scheduler_limits(config)
    scheduler = Scheduler(limits, steered_policies(config, runtime, limits))
    return Engine(runtime, scheduler, EventLog(), time.monotonic)


def _measure(engine: Engine, stall: Stall, vocab: int, seed: int, waits: Waits) -> None:
    draw = random.Random(seed)
    context = engine.scheduler.limits.context_tokens

    def request(id: str, tokens: Tokens, answer: Tokens) -> Request:
        return Request(id, [draw.randrange(vocab) for _ in range(tokens)], SamplingParams(temperature=0), answer)

    for stream in range(stall.streams):
        engine.submit(request(f"stream {stream}", _SHORT_PROMPT, context - _SHORT_PROMPT))
    events = _steps(engine)
    last: dict[str, Seconds] = {}
    for _ in range(_STEADY_STEPS):
        last |= {event.request: event.at for event in next(events)}
    engine.submit(request("prompt", stall.prompt_tokens, 1))
    begin = time.monotonic()
    for sampled in events:
        for event in sampled:
            if event.request == "prompt":
                waits.prefills.append(event.at - begin)
                return
            waits.between.append(event.at - last[event.request])
            last[event.request] = event.at


def _steps(engine: Engine) -> Iterator[list[Sampled]]:
    """Run step after step; the tokens of each, the streams' before the prompt's."""
    cursor = 0
    while True:
        engine.step()
        events, cursor, _ = engine.log.read(cursor)
        yield [event for event in events if isinstance(event, Sampled)]


def _report(name: str, stall: Stall, waits: Waits, json: bool) -> str:
    p50, p99 = percentile(waits.between, 50), percentile(waits.between, 99)
    prefill = sum(waits.prefills) / len(waits.prefills)
    if json:
        found = {"target": name, "target_itl_seconds": stall.target_itl, "itl_p50_seconds": p50}
        found |= {"itl_p99_seconds": p99, "prefill_seconds": prefill, "tokens": len(waits.between)}
        return json_text.dumps({"measure": "stall", **found})
    verdict = "under" if p99 < 2 * stall.target_itl else "NOT under"
    return (
        f"{name} --target-itl {stall.target_itl * 1e3:.0f}ms: ITL {p50 * 1e3:.1f}/{p99 * 1e3:.1f} ms (p50/p99) of "
        f"{stall.streams} streams while a prompt of {stall.prompt_tokens} tokens was read, in {prefill:.1f} s; "
        f"p99 {verdict} twice the target"
    )
