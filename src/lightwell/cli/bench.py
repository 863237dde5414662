"""``lightwell bench decode`` and ``prefill``: the runtime alone, one step after another, medians of several runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.spec import ModelSpec
from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.host.memory import blocks_for
from lightwell.runtimes.base import BLOCK_TOKENS, KVCacheDtype, MemoryReport, StepInput, sampling_rows
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.units import Seconds, Tokens

_TOKEN = 1  # which token is read does not change the work

Run = Callable[[], Seconds]  # does the work once


@dataclass(frozen=True)
class Loaded:
    """A model in this process, with room for the KV cache of the work at hand."""

    runtime: CpuRuntime
    spec: ModelSpec
    memory: MemoryReport


def decode(
    model: str,
    batch: int,
    tokens: Tokens,
    context: Tokens,
    repeat: int,
    threads: int | None,
    kv_cache_dtype: KVCacheDtype,
    json: bool,
) -> None:
    """Decode ``tokens`` tokens for each of ``batch`` sequences that have ``context`` already; tokens per second."""
    loaded = load(model, threads, batch * blocks_for(context + tokens), kv_cache_dtype)
    run = decoding(loaded, batch, tokens, context)
    facts: dict[str, object] = {"batch": batch, "tokens": tokens, "context": context, "kv_cache": kv_cache_dtype}
    label = f"decode, batch {batch}, {tokens} tokens each" + (f" after {context}" if context else "")
    _report("decode", label, loaded, batch * tokens, repeat, run, json, facts)


def prefill(
    model: str,
    tokens: Tokens,
    chunk: Tokens,
    repeat: int,
    threads: int | None,
    kv_cache_dtype: KVCacheDtype,
    json: bool,
) -> None:
    """Read one prompt of ``tokens`` tokens in steps of ``chunk``; print tokens per second."""
    loaded = load(model, threads, blocks_for(tokens), kv_cache_dtype)
    facts: dict[str, object] = {"tokens": tokens, "chunk": chunk, "kv_cache": kv_cache_dtype}
    label = f"prefill, {tokens} tokens in chunks of {chunk}"
    _report("prefill", label, loaded, tokens, repeat, prefilling(loaded, tokens, chunk), json, facts)


def load(model: str, threads: int | None, blocks: int, kv_cache_dtype: KVCacheDtype = "f16") -> Loaded:
    checkpoint = open_checkpoint(pull(model))
    runtime = CpuRuntime(threads=threads, kv_cache_dtype=kv_cache_dtype)
    memory = runtime.load(checkpoint)
    runtime.allocate(blocks)
    return Loaded(runtime, checkpoint.spec, memory)


def decoding(loaded: Loaded, batch: int, tokens: Tokens, context: Tokens = 0) -> Run:
    """Each run decodes ``tokens`` tokens a sequence from position ``context`` on.

    What stands before is one token in each block: that touches every page of the cache, which would otherwise all be
    the system's one page of zeros; its values do not change the work.
    """
    longest = context + tokens
    for position in range(0, context, BLOCK_TOKENS):
        loaded.runtime.execute(_step(batch, position, 1, longest))
    steps = [_step(batch, position, 1, longest) for position in range(context, longest)]
    return lambda: _run(loaded.runtime, steps)


def prefilling(loaded: Loaded, tokens: Tokens, chunk: Tokens) -> Run:
    """Each run reads one prompt."""
    steps = [_step(1, start, min(chunk, tokens - start), tokens) for start in range(0, tokens, chunk)]
    return lambda: _run(loaded.runtime, steps)


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


def _run(runtime: CpuRuntime, steps: list[StepInput]) -> Seconds:
    begin = time.perf_counter()
    for step in steps:
        runtime.execute(step)
    return time.perf_counter() - begin


def _report(
    measure: str,
    label: str,
    loaded: Loaded,
    tokens: Tokens,
    repeat: int,
    run: Run,
    json: bool,
    facts: dict[str, object],
) -> None:
    run()  # the first run touches memory that the others find warm
    rates = Runs(tuple(tokens / run() for _ in range(repeat)))
    if json:
        print(as_json(measure, rates, "tokens/s", model=loaded.spec.name, **facts, **loaded.memory.details))
        return
    print(f"{loaded.spec.name}: " + ", ".join(f"{key} {value}" for key, value in loaded.memory.details.items()))
    print(show(label, rates, "tokens/s"))
