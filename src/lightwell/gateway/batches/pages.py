"""Lists in pages, as OpenAI's: ``after`` names the last one seen, ``limit`` bounds a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from lightwell.errors import InvalidRequest

_USUAL = 20


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Named)


@dataclass(frozen=True)
class Page:
    after: str | None
    limit: int

    def listed(self, found: Sequence[Item], describe: Callable[[Item], dict[str, Any]]) -> dict[str, Any]:
        """``found`` has one more than the page where there are more."""
        shown = found[: self.limit]
        return {
            "object": "list",
            "data": [describe(item) for item in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(found) > self.limit,
        }


def page_of(request: Request, most: int) -> Page:
    """Raises InvalidRequest for a limit that is no number from 1 to ``most``."""
    text = request.query_params.get("limit", str(_USUAL))
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= most:
        raise InvalidRequest(f"'limit' is {text[:20]!r}: give a number from 1 to {most}.", param="limit")
    return Page(request.query_params.get("after"), limit)
