"""What is kept of a response: only where the request asked for it."""

from typing import Any

import msgspec

from lightwell.units import Seconds


class Kept(msgspec.Struct, frozen=True):
    """``input`` are the items of the request itself, ``body`` the response as it was last sent."""

    id: str
    tenant: str
    created_at: Seconds  # since 1970
    previous: str | None
    input: list[dict[str, Any]]
    body: dict[str, Any]
