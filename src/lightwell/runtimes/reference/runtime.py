"""The reference runtime: any model in NumPy float32 from dequantized weights. Written to be read; the tests' oracle."""

import time
from typing import BinaryIO

import numpy as np

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.models import model_function
from lightwell.models.weights import arrange
from lightwell.runtimes.base import BLOCK_TOKENS, Floats, MemoryReport, StepInput, StepOutput
from lightwell.runtimes.reference.cache import LayerCache
from lightwell.runtimes.reference.drawing import draw
from lightwell.runtimes.reference.ops import ReferenceOps
from lightwell.runtimes.slots import copies_of


class ReferenceRuntime:
    def load(self, checkpoint: Checkpoint) -> MemoryReport:
        self._spec = checkpoint.spec
        self._weights = arrange(checkpoint)
        self._values = {tensor.name: dequantize(tensor) for tensor in checkpoint.tensors.values()}
        return MemoryReport(
            weight_bytes=sum(values.nbytes for values in self._values.values()),
            workspace_bytes=0,
            kv_bytes_per_block=self._spec.kv_bytes_per_token("f32") * BLOCK_TOKENS,
            details={"arithmetic": "NumPy float32"},
        )

    def allocate(self, blocks: int) -> None:
        self._caches = [LayerCache(self._spec, blocks) for _ in range(self._spec.layers)]
        self._blocks, self._offload_slots = blocks, 0

    def offload_to(self, file: BinaryIO, slots: int) -> None:
        """The slots are in memory: this runtime is for tests, and the file stays empty."""
        self._offload_slots = slots
        for cache in self._caches:
            cache.add_slots(slots)

    def execute(self, step: StepInput, logits: Floats | None = None) -> StepOutput:
        started = time.perf_counter()
        for source, target in copies_of(step, self._blocks, self._offload_slots):
            for cache in self._caches:
                cache.copy(source, target)
        if len(step.tokens) == 0:
            output = draw(np.zeros((0, self._spec.vocab), np.float32), step.sampling, started)
            output.hidden = None if step.hidden_rows is None else np.zeros((0, self._spec.width), np.float32)
            return output
        ops = ReferenceOps(step, self._values, self._caches)
        scores = model_function(self._spec)(ops, self._spec, self._weights)
        if logits is not None:
            logits[:] = scores
        output = draw(scores, step.sampling, started)
        output.hidden = ops.hidden
        return output
