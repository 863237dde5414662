"""``lightwell bench decode`` and ``prefill``: the runtime alone, one step after another, medians of several runs."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.host.memory import blocks_for
from lightwell.runtimes.base import Runtime, StepInput, sampling_rows
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.units import Seconds, Tokens

_TOKEN = 1  # which token is read does not change the work


def decode(model: str, batch: int, tokens: Tokens, repeat: int, threads: int | None) -> None:
    """Decode ``tokens`` tokens for each of ``batch`` sequences from an empty context; print tokens per second."""
    run = decoding(model, batch, tokens, threads)
    _report(f"decode, batch {batch}, {tokens} tokens each", batch * tokens, repeat, run)


def prefill(model: str, tokens: Tokens, chunk: Tokens, repeat: int, threads: int | None) -> None:
    """Read one prompt of ``tokens`` tokens in steps of ``chunk``; print tokens per second."""
    run = prefilling(model, tokens, chunk, threads)
    _report(f"prefill, {tokens} tokens in chunks of {chunk}", tokens, repeat, run)


def decoding(model: str, batch: int, tokens: Tokens, threads: int | None) -> Callable[[], Seconds]:
    """A loaded model; each call decodes from an empty context and returns how long it took."""
    runtime = _load(model, threads, batch * blocks_for(tokens))
    steps = [_step(batch, position, 1, tokens) for position in range(tokens)]
    return lambda: _run(runtime, steps)


def prefilling(model: str, tokens: Tokens, chunk: Tokens, threads: int | None) -> Callable[[], Seconds]:
    """A loaded model; each call reads one prompt and returns how long it took."""
    runtime = _load(model, threads, blocks_for(tokens))
    steps = [_step(1, start, min(chunk, tokens - start), tokens) for start in range(0, tokens, chunk)]
    return lambda: _run(runtime, steps)


def _load(model: str, threads: int | None, blocks: int) -> Runtime:
    checkpoint = open_checkpoint(pull(model))
    runtime = CpuRuntime(threads=threads)
    memory = runtime.load(checkpoint)
    runtime.allocate(blocks)
    print(f"{checkpoint.spec.name}: " + ", ".join(f"{key} {value}" for key, value in memory.details.items()))
    return runtime


def _step(batch: int, start: Tokens, count: Tokens, longest: Tokens) -> StepInput:
    """``count`` tokens from position ``start`` on for each of ``batch`` sequences, one greedy token for each."""
    blocks = blocks_for(longest)
    return StepInput(
        tokens=np.full(batch * count, _TOKEN, np.int32),
        positions=np.tile(np.arange(start, start + count, dtype=np.int32), batch),
        starts=np.arange(0, batch * count + 1, count, dtype=np.int32),
        block_tables=np.arange(batch * blocks, dtype=np.int32).reshape(batch, blocks),
        logit_rows=np.arange(count - 1, batch * count, count, dtype=np.int32),
        sampling=sampling_rows([SamplingParams(temperature=0)] * batch, [start + count] * batch),
    )


def _run(runtime: Runtime, steps: list[StepInput]) -> Seconds:
    begin = time.perf_counter()
    for step in steps:
        runtime.execute(step)
    return time.perf_counter() - begin


def _report(what: str, tokens: Tokens, repeat: int, run: Callable[[], Seconds]) -> None:
    run()  # the first run touches memory that the others find warm
    rates = sorted(tokens / run() for _ in range(repeat))
    print(f"{what}: {statistics.median(rates):.0f} tokens/s (from {rates[0]:.0f} to {rates[-1]:.0f}, {repeat} runs)")
