"""Stages: what stands around every generation, whichever API asked for it and however it ends: limits, the fair queue,
the ledger.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Protocol

from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation, run


class Stage(Protocol):
    """Entered before the engine sees anything, where it may raise a LightwellError or wait; left after the last token,
    also by cancellation or failure. It may add response headers to ``generation.headers`` while it is entered."""

    def around(self, generation: Generation) -> AbstractAsyncContextManager[None]: ...


async def answered(stages: list[Stage], generation: Generation) -> AsyncGenerator[list[Delta], None]:
    """The one way from a planned generation to its deltas; see ``run``."""
    async with AsyncExitStack() as entered:
        for stage in stages:
            await entered.enter_async_context(stage.around(generation))
        async with aclosing(run(generation)) as deltas:
            async for batch in deltas:
                yield batch
