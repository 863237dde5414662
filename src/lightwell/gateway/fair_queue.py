"""FairQueue: who goes into the engine next, where more want to than it can run at once.

Requests of higher priority first; among equals the tenant that has had the fewest tokens lately (start-time fair
queueing: P. Goyal, H. Vin, H. Cheng 1996). So one key's thousand requests do not stand before another's one.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lightwell.errors import Overloaded
from lightwell.gateway.generate import Generation
from lightwell.gateway.limits import most_tokens
from lightwell.units import Seconds

_REMEMBERED = 64  # ends of requests, from which the time of a wait is told
_LONGEST_RETRY: Seconds = 60.0


class FairQueue:
    """A stage, for one engine. ``running`` is how many sequences it should have at once, a few more than a step takes;
    ``waiting`` how many requests may wait here."""

    def __init__(self, running: int, waiting: int, now: Callable[[], Seconds] = time.monotonic) -> None:
        self._most, self._most_waiting, self._now = running, waiting, now
        self._running = 0
        self._line: list[tuple[int, float, int, int, asyncio.Future[None]]] = []
        self._virtual = 0.0  # the start tag of whoever went in last
        self._finish: dict[str, float] = {}
        self._numbers = itertools.count()
        self._ends: deque[Seconds] = deque(maxlen=_REMEMBERED)

    @property
    def waiting(self) -> int:
        return sum(1 for *_, turn in self._line if not turn.done())

    @asynccontextmanager
    async def around(self, generation: Generation) -> AsyncIterator[None]:
        """Raises Overloaded where too many wait already."""
        size = min(generation.width, self._most)
        await self._enter(generation, size)
        try:
            yield
        finally:
            self._leave(size)

    async def _enter(self, generation: Generation, size: int) -> None:
        start = self._start_tag(generation)
        if self._running + size <= self._most and not self.waiting:
            self._go(start, size)
            return
        if self.waiting >= self._most_waiting:
            raise Overloaded(
                f"{self._most_waiting} requests are waiting already. Try again later.", retry_after=self._retry_after()
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (_priority(generation), start, next(self._numbers), size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(size)  # its turn had come
            raise

    def _start_tag(self, generation: Generation) -> float:
        """Where the tenant's last request ends in virtual time, or now if that is past."""
        tenant, tokens = generation.caller.tenant, sum(most_tokens(generation))
        start = max(self._virtual, self._finish.get(tenant, 0.0))
        self._finish[tenant] = start + tokens
        if len(self._finish) > 1000:
            self._finish = {name: end for name, end in self._finish.items() if end > self._virtual}
        return start

    def _go(self, start: float, size: int) -> None:
        self._virtual = max(self._virtual, start)
        self._running += size

    def _leave(self, size: int) -> None:
        self._running -= size
        self._ends.append(self._now())
        while self._line:
            _, start, _, next_size, turn = self._line[0]
            if not turn.done() and self._running + next_size > self._most:
                return
            heapq.heappop(self._line)
            if not turn.done():
                self._go(start, next_size)
                turn.set_result(None)

    def _retry_after(self) -> Seconds:
        """How long until a tenth of the line will have gone in, as fast as requests ended lately."""
        if len(self._ends) < 2:
            return 1.0
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return min(max(each * math.ceil(self._most_waiting / 10), 1.0), _LONGEST_RETRY)


def _priority(generation: Generation) -> int:
    return min(answer.request.priority for answer in generation.answers)
