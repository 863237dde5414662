"""How much memory the machine can give, and how much of it the KV cache gets by default."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.errors import StartupError
from lightwell.runtimes.block import BLOCK_TOKENS, KVCacheDtype
from lightwell.units import Bytes, Tokens, format_bytes

_FULL_CONVERSATIONS = 2  # by default the KV cache holds this many conversations of the longest length
_KV_SHARE = 0.5  # but takes at most this share of the memory that is left after the weights
_PROCESS_BYTES = 256 << 20  # interpreter, libraries and workspace of both processes, as measured with room to spare


@dataclass(frozen=True)
class KVPlan:
    """The KV cache that a server will allocate."""

    blocks: int
    bytes: Bytes
    context_tokens: Tokens

    @property
    def full_conversations(self) -> float:
        """How many conversations of the longest length fit at once."""
        return self.blocks / blocks_for(self.context_tokens)


def blocks_for(tokens: Tokens) -> int:
    return -(-tokens // BLOCK_TOKENS)


def available_bytes() -> Bytes:
    """Memory that can be taken without swapping: MemAvailable, or what is left under the control group's limit."""
    available = _machine_available()
    limit, used = _read(Path("/sys/fs/cgroup/memory.max")), _read(Path("/sys/fs/cgroup/memory.current"))
    return available if limit is None or used is None else min(available, limit - used)


def _machine_available() -> Bytes:
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(meminfo["MemAvailable"].split()[0]) * 1024
    except OSError:  # not Linux: all of the memory is the best that can be said
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such control group, or "max"
        return None


def return_free_memory() -> None:
    """Give what this process has freed back to the system, where the C library can (glibc).

    Building a tokenizer leaves about 10 MB free between what stays, which the library would keep for later.
    """
    import ctypes

    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def plan_kv(
    checkpoint: Checkpoint,
    context_tokens: Tokens,
    asked: Bytes | None,
    dtype: KVCacheDtype = "f16",
    available: Bytes | None = None,
    draft: Checkpoint | None = None,
) -> KVPlan:
    """Size the KV cache of this type before anything heavy starts. A draft model has as many blocks of its own.

    ``asked`` is the size that the user named, None for the default. Raises StartupError where the model and its
    cache do not fit into memory, or the cache would hold less than one block.
    """
    models = [checkpoint] if draft is None else [checkpoint, draft]
    weights = sum(tensor.nbytes for model in models for tensor in model.tensors.values())
    left = (available_bytes() if available is None else available) - weights - _PROCESS_BYTES
    block = sum(model.spec.kv_bytes_per_token(dtype) for model in models) * BLOCK_TOKENS
    wanted = asked
    if wanted is None:
        wanted = min(_FULL_CONVERSATIONS * blocks_for(context_tokens) * block, int(max(left, 0) * _KV_SHARE))
    blocks = wanted // block
    if wanted > left or blocks < 1:
        raise StartupError(
            f"Too little memory for {checkpoint.path.name}: its weights take {format_bytes(weights)}, the KV cache "
            f"{format_bytes(max(wanted, block))} and the server itself {format_bytes(_PROCESS_BYTES)}, but only "
            f"{format_bytes(max(left, 0) + weights + _PROCESS_BYTES)} are free. "
            "Choose a smaller model, or a smaller --kv-cache-memory."
        )
    return KVPlan(blocks, blocks * block, context_tokens)
