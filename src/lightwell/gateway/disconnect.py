"""Work that ends when its client goes away.

Starlette cancels nothing when the client of a plain (not streamed) response leaves, and ``is_disconnected`` fails
behind some middleware; so a second task waits for the disconnect message while the work runs.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await the work; cancel it and raise ClientGone if the client leaves first.

    ``receive`` is the ASGI callable, with the request's body already read.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.wait({task, watcher})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
