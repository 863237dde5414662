"""Put an engine together: open the model, load a runtime, allocate the KV cache, make the scheduler."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.engine.cost_model import CostModel
from lightwell.engine.draft_model import DraftModel
from lightwell.engine.engine import Engine
from lightwell.engine.masks import StepMasks
from lightwell.engine.options import make_policies
from lightwell.engine.policies import Policies, SchedulerLimits
from lightwell.engine.probe import probe
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.scheduler import Scheduler
from lightwell.engine.speculation import Speculator
from lightwell.errors import StartupError
from lightwell.events import EventLog
from lightwell.host.messages import EngineConfig, Hello
from lightwell.host.offload import Offload, set_up_offload
from lightwell.runtimes.base import BLOCK_TOKENS, Runtime
from lightwell.sampling.grammar import Grammars

if TYPE_CHECKING:
    from lightwell.text.tokenizer import Tokenizer


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
    offload = set_up_offload(config, runtime, memory.kv_bytes_per_block) if config.kv_offload else Offload(0, "off")
    limits = scheduler_limits(config, offload.slots)
    scheduler = Scheduler(limits, steered_policies(config, runtime, limits))
    speculator = make_speculator(config, checkpoint, limits)
    hello = Hello(
        model=config.name,
        context_tokens=config.context_tokens,
        kv_blocks=config.kv_blocks,
        block_tokens=BLOCK_TOKENS,
        weight_bytes=memory.weight_bytes,
        workspace_bytes=memory.workspace_bytes,
        kv_bytes=memory.kv_bytes_per_block * config.kv_blocks,
        details=memory.details | {"KV offload": offload.report},
        embedding_dimensions=checkpoint.spec.width,
    )
    return Engine(runtime, scheduler, EventLog(), time.monotonic, speculator, make_masks(checkpoint)), hello


def make_masks(checkpoint: Checkpoint) -> StepMasks:
    return StepMasks(Grammars(lambda: _tokenizer(checkpoint)), checkpoint.spec.vocab)


def _tokenizer(checkpoint: Checkpoint) -> "Tokenizer":
    """Most engines never need one: texts are the server's, and only grammars and draft models look at them here."""
    from lightwell.text.load import load_tokenizer

    return load_tokenizer(checkpoint)


def make_speculator(config: EngineConfig, target: Checkpoint, limits: SchedulerLimits) -> Speculator | None:
    """Raises CheckpointError or StartupError for a draft model that cannot run here, or not for this target."""
    asked = config.speculation
    if asked is None:
        return None
    if asked.model is None:
        return PromptLookup(asked.num_speculative_tokens)
    checkpoint = open_checkpoint(Path(asked.model))
    check_same_tokens(checkpoint, target)
    runtime = make_runtime(config)
    runtime.load(checkpoint)
    runtime.allocate(limits.blocks)
    context = min(limits.context_tokens, checkpoint.spec.context_tokens)
    return DraftModel(runtime, replace(limits, context_tokens=context), asked.num_speculative_tokens)


def check_same_tokens(draft: Checkpoint, target: Checkpoint) -> None:
    """Raises StartupError where the ids of the two models do not mean the same tokens."""
    theirs, ours = _tokenizer(draft), _tokenizer(target)
    size = min(theirs.vocab_size, ours.vocab_size)
    if draft.spec.vocab != target.spec.vocab or any(theirs.token_bytes(i) != ours.token_bytes(i) for i in range(size)):
        raise StartupError(
            f"The draft model {draft.path.name} has another vocabulary than {target.path.name}: its guesses would mean "
            "other tokens. Choose a smaller model of the same family."
        )


def scheduler_limits(config: EngineConfig, offload_slots: int = 0) -> SchedulerLimits:
    return SchedulerLimits(
        blocks=config.kv_blocks,
        block_tokens=BLOCK_TOKENS,
        context_tokens=config.context_tokens,
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        watermark=config.watermark,
        prefix_cache=config.prefix_cache,
        offload_slots=offload_slots,
    )


def steered_policies(config: EngineConfig, runtime: Runtime, limits: SchedulerLimits) -> Policies:
    """The policies asked for. Where they have a target to meet, the loaded runtime is tried out first."""
    cost = CostModel()
    if config.policies.steered:
        probe(runtime, limits, time.monotonic, cost)
    return make_policies(config.policies, cost)
