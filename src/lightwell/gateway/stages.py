"""Stages: what stands around every generation, whichever API asked for it and however it ends: limits, the fair queue,
the ledger.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Protocol

from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation, run
from lightwell.gateway.grouping import grouped

if TYPE_CHECKING:
    from lightwell.gateway.gateway import Gateway


class Stage(Protocol):
    """Entered before the engine sees anything, where it may raise a LightwellError or wait; left after the last token,
    also by cancellation or failure. It may add response headers to ``generation.headers`` while it is entered."""

    def around(self, generation: Generation) -> AbstractAsyncContextManager[None]: ...


async def answered(gateway: "Gateway", generation: Generation) -> AsyncGenerator[list[Delta], None]:
    """The one way from a planned generation to its deltas (``run``), some together where many streams are open."""
    generation.price = (await gateway.prices.rules()).get(generation.served.names[0])
    async with AsyncExitStack() as entered:
        for stage in gateway.stages:
            await entered.enter_async_context(stage.around(generation))
        together = grouped(run(generation), gateway.grouping, lambda: gateway.drain.open)
        async with aclosing(together) as deltas:
            async for batch in deltas:
                yield batch
