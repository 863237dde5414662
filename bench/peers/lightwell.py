"""Lightwell as a subject, and the machine's own limits for the same work.

Decode and prefill run in this process on the runtime alone, as the other engines' own benchmarks do.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.sessions import ServerSession
from bench.peers.workloads import Decode, Metrics, Prefill, Setting, Unavailable
from lightwell.checkpoints.spec import ModelSpec
from lightwell.cli.bench import Loaded, decoding, load, prefilling
from lightwell.cli.bench_machine import peak, read_bandwidth
from lightwell.cli.bench_serve import serve_command
from lightwell.host.memory import blocks_for
from lightwell.runtimes.base import BLOCK_TOKENS, KVCacheDtype
from lightwell.runtimes.cpu.runtime import ISA_VARIABLE
from lightwell.units import Bytes

KV_CACHE = "1GiB"  # room for the rows with 64 streams; the others get 4 GiB, as peers do by their own defaults
_PREFILL_CHUNK = 512
_PRODUCTS = ("linear", "gated", "qkv", "logits")  # the native ops that hold matrix products
_LIMIT_RUNS = 3


class LightwellSession(ServerSession):
    """``flags`` are more options for the server."""

    kv_cache_dtype: KVCacheDtype = "f16"  # of what is measured in this process

    def __init__(self, setting: Setting, log: Path, flags: tuple[str, ...] = ()) -> None:
        super().__init__(setting, log)
        self.model = setting.model
        self.flags = flags
        self._loaded: tuple[int, Loaded] | None = None

    def command(self, port: int, *, lean: bool) -> list[str]:
        cache = () if lean else ("--kv-cache-memory", KV_CACHE)
        return [*serve_command(self.setting.model, port, self.setting.threads), *cache, *self.flags]

    def environment(self) -> Mapping[str, str]:
        return {} if self.setting.isa is None else {ISA_VARIABLE: self.setting.isa}

    def decode(self, workload: Decode, seed: int) -> Metrics:
        loaded = self._load(workload.batch * blocks_for(workload.context + workload.tokens))
        seconds = decoding(loaded, workload.batch, workload.tokens, workload.context)()
        return {"tokens_per_second": workload.batch * workload.tokens / seconds}

    def prefill(self, workload: Prefill, seed: int) -> Metrics:
        loaded = self._load(blocks_for(workload.tokens))
        before = _product_seconds(loaded)
        seconds = prefilling(loaded, workload.tokens, _PREFILL_CHUNK)()
        operations = product_operations(loaded.spec, workload.tokens)
        return {
            "tokens_per_second": workload.tokens / seconds,
            "product_operations_per_second": operations / (_product_seconds(loaded) - before),
        }

    def _load(self, blocks: int) -> Loaded:
        """The model in this process; a cache that has become too small is made anew with it."""
        if self._loaded is None or self._loaded[0] < blocks:
            self._loaded = None
            with forced_isa(self.setting.isa):
                self._loaded = blocks, load(self.setting.model, self.setting.threads, blocks, self.kv_cache_dtype)
        return self._loaded[1]

    def close(self) -> None:
        self._loaded = None
        super().close()


class Int8KvSession(LightwellSession):
    kv_cache_dtype = "int8"


class MachineSession(LightwellSession):
    """What the machine could do at most: for decoding the bytes of weights and KV cache at the read bandwidth of just
    that working set, for a prefill its matrix products at the int8 peak."""

    def decode(self, workload: Decode, seed: int) -> Metrics:
        step = step_bytes(self._load(1), workload)
        limit = read_bandwidth(step, self.setting.threads, _LIMIT_RUNS).median
        return {"tokens_per_second": workload.batch * limit / step}

    def prefill(self, workload: Prefill, seed: int) -> Metrics:
        loaded = self._load(1)
        limit = peak(loaded.memory.details["instruction set"], "int8", self.setting.threads, _LIMIT_RUNS).median
        rate = limit * workload.tokens / product_operations(loaded.spec, workload.tokens)
        return {"tokens_per_second": rate, "product_operations_per_second": limit}


def step_bytes(loaded: Loaded, workload: Decode) -> Bytes:
    """What one decoding step has to read: every weight once, and the KV cache of what each sequence sees."""
    spec = loaded.spec
    if not spec.tied_head:
        raise Unavailable("bytes are counted for models whose output head is the token table")
    seen = sum(min(workload.mean_context, spec.window(layer) or workload.mean_context) for layer in range(spec.layers))
    kv_bytes = loaded.memory.kv_bytes_per_block / BLOCK_TOKENS / spec.layers * seen
    return loaded.memory.weight_bytes + round(workload.batch * kv_bytes)


def product_operations(spec: ModelSpec, tokens: int) -> int:
    """Multiplications and additions in the matrix products of a prefill: all layers, and the head for one row."""
    return 2 * spec.layers * spec.layer_parameters() * tokens + 2 * spec.width * spec.vocab


def _product_seconds(loaded: Loaded) -> float:
    profile = loaded.runtime.profile()
    return sum(profile.get(kind, 0.0) for kind in _PRODUCTS)


@contextmanager
def forced_isa(isa: str | None) -> Iterator[None]:
    """The instruction set that a runtime made within the block will choose."""
    before = os.environ.get(ISA_VARIABLE)
    try:
        if isa is not None:
            os.environ[ISA_VARIABLE] = isa
        yield
    finally:
        os.environ.pop(ISA_VARIABLE, None)
        if before is not None:
            os.environ[ISA_VARIABLE] = before
