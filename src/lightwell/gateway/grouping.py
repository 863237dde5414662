"""Grouping: how many tokens a stream sends at once: with few streams each as it comes, with many some together.

Every event costs the server and the client the same, however much is in it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from lightwell.gateway.answer import Delta, join
from lightwell.units import Seconds, Tokens

_STREAMS_A_TOKEN = 32  # so many open requests for each further token of a group


@dataclass(frozen=True)
class Grouping:
    """``tokens`` is the most of a choice in one event, ``wait`` how long the first of them waits for the others. Where
    they come further apart than that, none waits: there would be no other."""

    tokens: Tokens = 8
    wait: Seconds = 0.1

    def size(self, open_requests: int) -> Tokens:
        return max(1, min(self.tokens, open_requests // _STREAMS_A_TOKEN))


async def grouped(
    deltas: AsyncGenerator[list[Delta], None], grouping: Grouping, open_requests: Callable[[], int]
) -> AsyncGenerator[list[Delta], None]:
    """The same deltas, joined. What begins or ends a choice never waits."""
    held: dict[int, Delta] = {}
    deadline, arrived = 0.0, time.monotonic()
    async with aclosing(deltas):
        step = None
        try:
            while True:
                size = grouping.size(open_requests())
                if size == 1 and not held and step is None:
                    if (batch := await anext(deltas, None)) is None:
                        return
                    yield batch
                    continue
                step = step or asyncio.ensure_future(anext(deltas, None))
                timeout = max(deadline - time.monotonic(), 0) if held else None
                await asyncio.wait({step}, timeout=timeout)
                if step.done():
                    if held and step.exception() is not None:  # what came before it goes out before it
                        yield list(held.values())
                    batch, step = step.result(), None
                    now, before = time.monotonic(), arrived
                    arrived = now
                    if not held:
                        deadline = now + grouping.wait if now - before < grouping.wait else now
                    for delta in batch or ():
                        held[delta.index] = join(held[delta.index], delta) if delta.index in held else delta
                    if batch is not None and not _is_due(held, size) and now < deadline:
                        continue
                    if batch is None and not held:
                        return
                ready, held = list(held.values()), {}
                yield ready
        finally:
            if step is not None:
                step.cancel()
                await asyncio.wait({step})


def _is_due(held: dict[int, Delta], size: Tokens) -> bool:
    return any(
        delta.first or delta.finish_reason is not None or delta.echo is not None or len(delta.tokens) >= size
        for delta in held.values()
    )
