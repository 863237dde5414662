"""Summaries: finished ones of conversations, kept in memory; the least recently used makes way."""

from collections import OrderedDict

_KEPT = 1000


class Summaries:
    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def find(self, key: bytes) -> str | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: bytes, summary: str) -> None:
        self._kept[key] = summary
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
