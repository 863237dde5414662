"""Put an engine together: open the model, load a runtime, allocate the KV cache, make the scheduler."""

import time
from dataclasses import replace
from pathlib import Path

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.engine.engine import Engine
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.events import EventLog
from lightwell.host.messages import EngineConfig, Hello
from lightwell.runtimes.base import BLOCK_TOKENS, Runtime


def make_runtime(config: EngineConfig) -> Runtime:
    """Imports only what is used: a server on a CPU never loads another runtime's libraries."""
    if config.runtime == "fake":
        from lightwell.runtimes.fake import FakeRuntime

        return FakeRuntime()
    if config.runtime == "reference":
        from lightwell.runtimes.reference import ReferenceRuntime

        return ReferenceRuntime()
    from lightwell.runtimes.cpu import CpuRuntime

    return CpuRuntime(
        threads=config.threads,
        max_step_tokens=config.max_step_tokens,
        max_logit_rows=config.max_sequences,
        pack_cache=config.pack_cache,
        pin_threads=config.pin_threads,
        kv_cache_dtype=config.kv_cache_dtype,
    )


def build_engine(config: EngineConfig, checkpoint: Checkpoint | None = None) -> tuple[Engine, Hello]:
    """Load the model and return an engine that takes requests, with what it tells its client about itself.

    Raises CheckpointError or StartupError where the model cannot run here.
    """
    checkpoint = checkpoint or open_checkpoint(Path(config.model))
    # What the model is used for, not what it could do: longrope chooses its frequencies by it.
    checkpoint = replace(checkpoint, spec=replace(checkpoint.spec, context_tokens=config.context_tokens))
    runtime = make_runtime(config)
    memory = runtime.load(checkpoint)
    runtime.allocate(config.kv_blocks)
    scheduler = Scheduler(
        SchedulerLimits(
            blocks=config.kv_blocks,
            block_tokens=BLOCK_TOKENS,
            context_tokens=config.context_tokens,
            max_sequences=config.max_sequences,
            max_step_tokens=config.max_step_tokens,
            watermark=config.watermark,
            prefix_cache=config.prefix_cache,
        )
    )
    hello = Hello(
        model=config.name,
        context_tokens=config.context_tokens,
        kv_blocks=config.kv_blocks,
        block_tokens=BLOCK_TOKENS,
        weight_bytes=memory.weight_bytes,
        workspace_bytes=memory.workspace_bytes,
        kv_bytes=memory.kv_bytes_per_block * config.kv_blocks,
        details=memory.details,
    )
    return Engine(runtime, scheduler, EventLog(), time.monotonic), hello
