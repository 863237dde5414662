"""Files mapped into memory to be read: nothing is copied until somebody looks, and pages can be given back."""

import mmap
from pathlib import Path

from lightwell.errors import CheckpointError


def map_file(path: Path) -> mmap.mmap:
    """Map a whole file read-only. Raises CheckpointError when it cannot be opened or is empty."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CheckpointError(path, "is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
