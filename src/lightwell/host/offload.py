"""The KV offload store of a server: its file, and whether it pays on this machine.

The file never has a name where the file system allows that, and loses it at once elsewhere: nothing stays behind,
however the engine ends. All of it is reserved before the first request, so that a full disk is an error at the start.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lightwell.checkpoints.catalog import cache_folder
from lightwell.errors import StartupError
from lightwell.host.messages import EngineConfig
from lightwell.runtimes.base import BLOCK_TOKENS, Runtime, StepInput, sampling_rows
from lightwell.units import Bytes, Seconds, format_bytes, format_seconds

_PROBED_BLOCKS = 8  # enough that the flush at their end, some milliseconds, does not count as that of one block


@dataclass(frozen=True)
class Offload:
    """``slots`` 0: there is no store. ``report`` says for people what there is and why."""

    slots: int
    report: str


def set_up_offload(config: EngineConfig, runtime: Runtime, block_bytes: Bytes, folder: Path | None = None) -> Offload:
    """Give the runtime, whose blocks are allocated, an offload file where one was asked for and pays.

    The file lies in ``folder``, by default the model cache. Raises StartupError where it cannot be made.
    """
    slots = config.kv_offload // block_bytes
    if not config.prefix_cache:
        raise StartupError("--kv-offload keeps the prefix cache's blocks: it needs --enable-prefix-caching.")
    if slots < 1:
        raise StartupError(
            f"--kv-offload {format_bytes(config.kv_offload)} is less than one block of {format_bytes(block_bytes)}."
        )
    file = offload_file(folder or cache_folder(), slots * block_bytes)
    out, back = time_moves(file, min(slots, _PROBED_BLOCKS), block_bytes)
    computing = compute_block(runtime)
    figures = (
        f"a block goes out in {format_seconds(out)} and comes back in {format_seconds(back)}, "
        f"computing it takes {format_seconds(computing)}"
    )
    if out + back >= computing:
        file.close()
        return Offload(0, f"off, as it would not pay: {figures}")
    runtime.offload_to(file, slots)
    return Offload(slots, f"{format_bytes(slots * block_bytes)}: {slots} blocks; {figures}")


def offload_file(folder: Path, size: Bytes) -> BinaryIO:
    """A file without a name, all of whose size is reserved on the disk. Raises StartupError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - the runtime keeps it open
    except OSError as error:
        raise _no_file(folder, size, error) from None
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        file.close()
        raise _no_file(folder, size, error) from None
    return file


def _no_file(folder: Path, size: Bytes, error: OSError) -> StartupError:
    return StartupError(
        f"--kv-offload: a file of {format_bytes(size)} in {folder} cannot be made: {error.strerror}. "
        "Ask for less, or set LIGHTWELL_CACHE to a folder with more room."
    )


def time_moves(file: BinaryIO, blocks: int, block_bytes: Bytes) -> tuple[Seconds, Seconds]:
    """Seconds a block to write and to read, both from the disk itself: what the system keeps in memory is a bonus."""
    content = np.random.default_rng(0).bytes(block_bytes)  # nothing that a file system could compress
    begin = time.perf_counter()
    for block in range(blocks):
        os.pwrite(file.fileno(), content, block * block_bytes)
    os.fdatasync(file.fileno())
    written = time.perf_counter()
    drop_pages(file)
    dropped = time.perf_counter()
    for block in range(blocks):
        os.pread(file.fileno(), block_bytes, block * block_bytes)
    return (written - begin) / blocks, (time.perf_counter() - dropped) / blocks


def drop_pages(file: BinaryIO) -> None:
    """Let the system forget what it keeps of the file in memory, once it is on the disk."""
    os.fdatasync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compute_block(runtime: Runtime) -> Seconds:
    """Seconds to compute a block of tokens, the second time: the first one touches the weights. Uses block 0."""
    step = StepInput(
        tokens=np.zeros(BLOCK_TOKENS, np.int32),
        positions=np.arange(BLOCK_TOKENS, dtype=np.int32),
        starts=np.array([0, BLOCK_TOKENS], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logit_rows=np.zeros(0, np.int32),
        sampling=sampling_rows([], []),
    )
    return [runtime.execute(step).duration for _ in range(2)][-1]
