"""CpuRuntime: any model on the CPU's own instructions, one native call a step."""

import logging
import os
from typing import BinaryIO, Literal

import numpy as np

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import StartupError
from lightwell.models.weights import arrange
from lightwell.runtimes.base import Floats, KVCacheDtype, MemoryReport, StepInput, StepOutput
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.fuse import Embed, Mix, Op, Score, fuse
from lightwell.runtimes.cpu.lower import lower, products
from lightwell.runtimes.cpu.record import record
from lightwell.runtimes.cpu.threads import core_cpus, default_threads
from lightwell.runtimes.cpu.weights import PackedWeights
from lightwell.units import Seconds, Tokens

MAX_THREADS = 1024
ISA_VARIABLE = "LIGHTWELL_CPU_ISA"

_log = logging.getLogger(__name__)


class CpuRuntime:
    """``threads`` None: the physical cores that the process may use. ``activations`` float32 is for tests.

    ``kv_cache_dtype`` int8 keeps each key and value of a head in 8 bits with one scale: half the bytes of f16.

    ``max_step_tokens`` is what the reported workspace is for, with a score asked of each; larger steps run, in more.
    ``pack_cache``: keep packed weights on disk for the next start (pack_cache.py). ``pin_threads``: each thread stays
    on a physical core of its own; the one that loads is among them, and should run the steps.
    """

    def __init__(
        self,
        threads: int | None = None,
        activations: Literal["int8", "float32"] = "int8",
        max_step_tokens: Tokens = 512,
        pack_cache: bool = False,
        pin_threads: bool = False,
        kv_cache_dtype: KVCacheDtype = "f16",
    ) -> None:
        """Raises StartupError for threads out of range, or an instruction set in LIGHTWELL_CPU_ISA that is not here."""
        self._isa = chosen_isa()
        self._threads = default_threads() if threads is None else threads
        if not 1 <= self._threads <= MAX_THREADS:
            raise StartupError(f"The CPU runtime was asked for {threads} threads; it takes 1 to {MAX_THREADS}.")
        self._pinned = core_cpus()[: self._threads] if pin_threads else []
        if pin_threads and len(self._pinned) < self._threads:
            raise StartupError(
                f"{self._threads} threads cannot be pinned to the {len(self._pinned)} physical cores that this process "
                "may use: ask for fewer, or do not pin them."
            )
        self._activations, self._pack_cache = activations, pack_cache
        self._kv_cache_dtype = kv_cache_dtype
        self._max_step_tokens = max_step_tokens

    def load(self, checkpoint: Checkpoint) -> MemoryReport:
        """Record the model and pack its weights. Raises CheckpointError where this runtime cannot run it."""
        spec = checkpoint.spec
        ops = fuse(record(checkpoint.path, spec, arrange(checkpoint)))
        weights = PackedWeights(
            checkpoint,
            _matrices(ops),
            self._threads,
            int8_activations=self._activations == "int8",
            cached=self._pack_cache,
        )
        self._width = spec.width
        self._plan = _native.Plan(
            self._isa,
            self._threads,
            spec.vocab,
            spec.layers,
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            self._kv_cache_dtype,
        )
        if self._pinned and not self._plan.pin(self._pinned):
            _log.warning("the system does not let threads be pinned to CPUs; they run where it puts them")
        lower(ops, self._plan, weights, kv_head_columns=spec.heads // spec.kv_heads * spec.head_dim)
        checkpoint.release_pages()
        return MemoryReport(
            weight_bytes=weights.nbytes,
            workspace_bytes=self._plan.workspace_bytes(
                self._max_step_tokens, self._max_step_tokens, spec.context_tokens
            ),
            kv_bytes_per_block=self._plan.kv_bytes_per_block,
            details={
                "instruction set": self._isa,
                "threads": f"{self._threads}, pinned" if self._pinned else str(self._threads),
                "activations": self._activations,
                "KV cache type": self._kv_cache_dtype,
            },
        )

    def allocate(self, blocks: int) -> None:
        self._plan.allocate(blocks)

    def offload_to(self, file: BinaryIO, slots: int) -> None:
        self._plan.offload_to(file.fileno(), slots)
        self._offload_file = file  # open for as long as the plan is

    def execute(self, step: StepInput, logits: Floats | None = None) -> StepOutput:
        """Raises ValueError for a step that is not well formed, and then has computed and copied nothing of it;
        RuntimeError where the offload file cannot be read or written, after which what blocks hold is not known."""
        rows, edits, masks = step.sampling, step.sampling.edits, step.sampling.masks
        output = _empty_output(len(step.logit_rows), int(rows.logprobs.max(initial=-1)))
        if step.hidden_rows is not None:
            output.hidden = np.empty((len(step.hidden_rows), self._width), np.float32)
        output.duration = self._plan.execute(
            step.tokens,
            step.positions,
            step.starts,
            step.block_tables,
            step.copies,
            step.logit_rows,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seeds,
            rows.positions,
            rows.logprobs,
            output.tokens,
            output.chosen,
            output.top_ids,
            output.top,
            logits,
            rows.given,
            None if edits is None else (edits.starts, edits.tokens, edits.factors, edits.addends),
            None if masks is None else (masks.rows, masks.bits, masks.wait),
            step.hidden_rows,
            output.hidden,
        )
        return output

    def profile(self) -> dict[str, Seconds]:
        """Seconds spent in steps so far, by kind of native op."""
        return self._plan.profile()


def chosen_isa() -> str:
    """The best instruction set of this machine, or the one that LIGHTWELL_CPU_ISA names."""
    available = _native.available_isas()
    isa = os.environ.get(ISA_VARIABLE) or available[0]
    if isa not in available:
        raise StartupError(f"{ISA_VARIABLE} is {isa}, but this machine can run: {', '.join(available)}.")
    return isa


def _matrices(ops: list[Op]) -> list[Tensor]:
    """Every tensor that is multiplied or looked up as a matrix."""
    tables = [op.table for op in ops if isinstance(op, Embed)]
    heads = [op.head.weight for op in ops if isinstance(op, Score)]
    layers = [layer.weight for op in ops if (found := products(op)) for layer in found[1]]
    downs = [expert.down.weight for op in ops if isinstance(op, Mix) for expert in op.experts.each]
    return [*tables, *layers, *downs, *heads]


def _empty_output(rows: int, top: int) -> StepOutput:
    """Log-probabilities that a row did not ask for stay NaN, and their ids -1. ``top`` -1: nobody asked for any."""
    output = StepOutput(np.empty(rows, np.int32), duration=0.0)
    if top >= 0:
        output.chosen = np.full(rows, np.nan, np.float32)
        output.top_ids = np.full((rows, top), -1, np.int32)
        output.top = np.full((rows, top), np.nan, np.float32)
    return output
