"""Files mapped into memory to be read: nothing is copied until somebody looks, and pages can be given back."""

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lightwell.errors import CheckpointError
from lightwell.units import Bytes, Seconds

_CLOCK_TICK: Seconds = 0.02  # file systems stamp changes with a clock that stands still for up to 10 ms


@dataclass(frozen=True)
class FileIdentity:
    """Equal for one file as long as nobody writes to it, replaces it or moves it."""

    path: str
    device: int
    inode: int
    size: Bytes
    modified_ns: int
    changed_ns: int  # also moves where somebody sets the time of modification back


def identify(file: BinaryIO) -> FileIdentity:
    """The identity of an open file, which must have been opened by its path."""
    status, path = os.fstat(file.fileno()), os.path.abspath(file.name)
    return FileIdentity(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class MappedFile(mmap.mmap):
    """``identity`` is the file's when it was mapped. ``settled``: a later change cannot have the same time stamp."""

    identity: FileIdentity
    settled: bool


def map_file(path: Path) -> MappedFile:
    """Map a whole file read-only. Raises CheckpointError when it cannot be opened or is empty."""
    try:
        with path.open("rb") as file:
            identity = identify(file)
            if identity.size == 0:
                raise CheckpointError(path, "is empty")
            mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    mapped.identity = identity
    mapped.settled = time.time() - identity.changed_ns / 1e9 > _CLOCK_TICK
    return mapped
