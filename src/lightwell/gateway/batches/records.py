"""What is kept of files and batches."""

from typing import Literal, TypeAlias

import msgspec

from lightwell.units import Bytes, Seconds

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")


class File(msgspec.Struct, frozen=True):
    id: str
    tenant: str
    purpose: str
    name: str
    bytes: Bytes
    created_at: Seconds  # since 1970, as all times here
    expires_at: Seconds | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """``caller`` is who made it, as JSON. ``times``: when it came into each status. ``errors``: those of its file."""

    id: str
    tenant: str
    caller: str
    endpoint: str
    input_file: str
    status: Status
    created_at: Seconds
    expires_at: Seconds
    metadata: dict[str, str] = {}
    times: dict[str, Seconds] = {}
    errors: list[dict[str, str | int | None]] = []
    total: int = 0
    done: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    output_seconds: Seconds | None = None  # how long the files that it writes are kept


class Line(msgspec.Struct, frozen=True):
    """One request of a batch. ``body`` is what the client wrote."""

    batch: str
    number: int
    custom_id: str
    body: bytes
