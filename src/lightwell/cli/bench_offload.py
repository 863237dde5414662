"""``lightwell bench offload``: what it takes to bring a KV block back, beside computing it again; and the time to the
first token of a prompt that is in the KV cache, in the offload file, or nowhere. In this process, without HTTP."""

import time
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from lightwell.checkpoints.catalog import cache_folder
from lightwell.cli.bench import Loaded, load
from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.events import EventLog
from lightwell.host.memory import blocks_for
from lightwell.host.offload import drop_pages, offload_file
from lightwell.runtimes.base import BLOCK_TOKENS, KVCacheDtype, StepInput, sampling_rows
from lightwell.sampling.params import SamplingParams
from lightwell.units import Seconds, Tokens

_MOVED = 32  # blocks in one measurement, copied back and forth
_ROOM = 2  # prompts that the KV cache of the comparison holds

Run = Callable[[], Seconds]


def bench_offload(
    model: str, tokens: Tokens, repeat: int, threads: int | None, kv_cache_dtype: KVCacheDtype, json: bool
) -> None:
    """Print one line a measure; the states of a measure take turns."""
    blocks = max(_ROOM * (blocks_for(tokens) + 1), 2 * _MOVED)
    loaded = load(model, threads, blocks, kv_cache_dtype)
    slots = 4 * blocks
    file = offload_file(cache_folder(), slots * loaded.memory.kv_bytes_per_block)
    loaded.runtime.offload_to(file, slots)
    facts: dict[str, object] = {"model": loaded.spec.name, "kv_cache": kv_cache_dtype, **loaded.memory.details}
    measures = {"block": _block_runs(loaded, file, blocks), "ttft": _ttft_runs(loaded, file, blocks, slots, tokens)}
    for measure, runs in measures.items():
        for state, times in _in_turn(runs, repeat).items():
            if json:
                print(as_json(measure, times, "s", state=state, tokens=tokens, **facts))
            else:
                label = "one block" if measure == "block" else f"first token of {tokens:,}"
                print(show(f"{label}, {state}", times, "ms", scale=1e-3, digits=2), flush=True)


def _in_turn(runs: dict[str, Run], repeat: int) -> dict[str, Runs]:
    for run in runs.values():
        run()  # the first one touches memory that the others find warm
    rounds = [{state: run() for state, run in runs.items()} for _ in range(repeat)]
    return {state: Runs(tuple(times[state] for times in rounds)) for state in runs}


def _block_runs(loaded: Loaded, file: BinaryIO, blocks: int) -> dict[str, Run]:
    """Seconds for one block, on average over _MOVED."""
    near, far = range(_MOVED), range(_MOVED, 2 * _MOVED)
    slots = range(blocks, blocks + _MOVED)

    def moving(sources: range, targets: range, *, from_disk: bool = False) -> Run:
        step = _step(0, list(zip(sources, targets, strict=True)))

        def run() -> Seconds:
            if from_disk:
                drop_pages(file)
            return loaded.runtime.execute(step).duration / _MOVED

        return run

    computing = {length: _step(length, []) for length in (BLOCK_TOKENS, 16 * BLOCK_TOKENS)}
    return {
        "copied in memory": moving(near, far),
        "written to the file": moving(near, slots),
        "read from the file's pages in memory": moving(slots, far),
        "read from the disk": moving(slots, far, from_disk=True),
        "computed alone": lambda: loaded.runtime.execute(computing[BLOCK_TOKENS]).duration,
        "computed among 16": lambda: loaded.runtime.execute(computing[16 * BLOCK_TOKENS]).duration / 16,
    }


def _step(tokens: Tokens, copies: list[tuple[int, int]]) -> StepInput:
    """One prompt's first tokens, after these copies."""
    return StepInput(
        tokens=np.ones(tokens, np.int32),
        positions=np.arange(tokens, dtype=np.int32),
        starts=np.array([0, tokens], np.int32),
        block_tables=np.arange(blocks_for(tokens), dtype=np.int32)[None],
        logit_rows=np.zeros(0, np.int32),
        sampling=sampling_rows([], []),
        copies=np.array(copies, np.int32) if copies else None,
    )


def _ttft_runs(loaded: Loaded, file: BinaryIO, blocks: int, slots: int, tokens: Tokens) -> dict[str, Run]:
    """Seconds from the arrival of a prompt to its first token."""
    limits = SchedulerLimits(blocks=blocks, context_tokens=blocks * BLOCK_TOKENS, watermark=0.0, offload_slots=slots)
    engine = Engine(loaded.runtime, Scheduler(limits), EventLog(), time.perf_counter)
    count = iter(range(1 << 30))
    prompt = [1 + i % 1000 for i in range(tokens)]

    def first_token(prompt: list[int]) -> Seconds:
        begin = time.perf_counter()
        engine.submit(Request(str(next(count)), prompt, SamplingParams(temperature=0), max_tokens=1))
        while engine.step():
            pass
        return time.perf_counter() - begin

    def fresh() -> list[int]:
        return [1001 + next(count), *prompt[1:]]

    def offloaded(*, from_disk: bool) -> Seconds:
        first_token(prompt)
        for _ in range(_ROOM):
            first_token(fresh())
        if from_disk:
            drop_pages(file)
        return first_token(prompt)

    def resident() -> Seconds:
        first_token(prompt)
        return first_token(prompt)

    return {
        "in the KV cache": resident,
        "in the offload file, in memory": lambda: offloaded(from_disk=False),
        "in the offload file, on disk": lambda: offloaded(from_disk=True),
        "computed": lambda: first_token(fresh()),
    }
