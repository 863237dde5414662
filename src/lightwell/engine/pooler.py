"""Pooler: hidden states of a prompt's tokens to the one vector that stands for it.

Rows are added up one by one, in the order of their positions and in float64, into a sum that stays while the prompt's
chunks are computed. So its bits depend on the rows alone, however they came: in which chunks, beside what, and whether
the sequence was preempted in between.
"""

import numpy as np
import numpy.typing as npt

from lightwell.engine.scheduler import Chunk
from lightwell.engine.sequence import Status
from lightwell.events import Embedded, Event
from lightwell.runtimes.base import Floats
from lightwell.units import Seconds


class Pooler:
    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.float64]] = {}

    def take(self, chunks: list[Chunk], hidden: Floats, now: Seconds) -> list[Event]:
        """Take in the hidden rows (H, width) of an executed step; returns the vectors that are complete with them."""
        complete: list[Event] = []
        end = 0
        for chunk in chunks:
            begin, end = end, end + chunk.pooled
            if chunk.pooled and chunk.sequence.status is Status.RUNNING:
                request, to_pool = chunk.sequence.request, chunk.sequence.to_pool
                self._add(request.id, hidden[begin:end])
                if chunk.pooled == to_pool:
                    complete.append(Embedded(now, request.id, unit_vector(self._sums[request.id])))
        return complete

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._sums.pop(request_id, None)

    def _add(self, request_id: str, rows: Floats) -> None:
        total = self._sums.setdefault(request_id, np.zeros(rows.shape[1]))
        for row in rows:
            total += row


def unit_vector(total: npt.NDArray[np.float64]) -> bytes:
    """The vector of length 1 in this direction, as little-endian float32. Of the rows' mean it is that of their sum."""
    norm = np.sqrt((total * total).sum())
    return (total / norm if norm > 0 else total).astype("<f4").tobytes()
