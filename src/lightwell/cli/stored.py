"""The store from the command line: opened as the server would, used once, closed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from lightwell.config import ServeConfig
from lightwell.gateway.store import Store

if TYPE_CHECKING:
    from lightwell.gateway.store.database import Database

Result = TypeVar("Result")


def with_database(work: "Callable[[Database], Awaitable[Result]]") -> Result:
    """Which store it is says ``LIGHTWELL_STORE`` or lightwell.toml. Raises StartupError."""

    async def opened() -> Result:
        store = Store(ServeConfig.load().store)
        try:
            return await work(await store.database())
        finally:
            await store.close()

    return asyncio.run(opened())
