"""SlotStore: which slots of the offload store are in use, and which one makes way next.

The slots themselves (of a file, in the runtimes that compute) are elsewhere; here they are numbers.
"""

from collections import OrderedDict
from collections.abc import Container, Iterator


class SlotStore:
    """``slots`` slots with the numbers from ``first`` on, which follow on those of the KV blocks."""

    def __init__(self, first: int, slots: int) -> None:
        self._empty = list(range(first + slots - 1, first - 1, -1))
        self._used: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        """How many slots hold something."""
        return len(self._used)

    @property
    def slots(self) -> int:
        return len(self._used) + len(self._empty)

    def claim(self, keep: Container[int]) -> int | None:
        """A slot for new content: an empty one, or the least recently used, but none of ``keep``."""
        slot = self._empty.pop() if self._empty else next((slot for slot in self._used if slot not in keep), None)
        if slot is not None:
            self.touch(slot)
        return slot

    def touch(self, slot: int) -> None:
        """The slot was used now."""
        self._used[slot] = None
        self._used.move_to_end(slot)

    def inconsistencies(self, findable: set[int]) -> Iterator[str]:
        """What contradicts the slots whose content can be found, in words. One in use need not be findable: what it
        holds may have lost its name to a collision."""
        for slot in findable - self._used.keys():
            yield f"slot {slot} can be found, but is not in use"
