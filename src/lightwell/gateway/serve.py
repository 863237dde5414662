"""Serving over HTTP, and a stop in two stages.

The first SIGTERM or Ctrl-C drains: not ready any more, nothing new is generated, open requests finish within a time
limit. The second one stops at once. Either way the server returns to its caller, so the exit code is 0.
"""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from lightwell.gateway.drain import Drain
from lightwell.units import Seconds

_KEEP_ALIVE_SECONDS = 75  # longer than clients and proxies keep idle connections, so that they close first
_CUT_SECONDS = 1  # what streams still open after the drain get to end themselves

log = logging.getLogger(__name__)


async def serve(app: ASGIApp, listener: socket.socket, drain: Drain, shutdown_timeout: Seconds) -> None:
    """Serve until a signal has ended it. In a thread other than the main one, cancel this to end it."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_CUT_SECONDS,
    )
    server = _Server(config, drain, shutdown_timeout)
    await server.serve([listener])
    await server.cut()


class _Server(uvicorn.Server):
    """uvicorn's server with our answer to signals; its own would end the process by the signal, not with code 0."""

    def __init__(self, config: uvicorn.Config, drain: Drain, shutdown_timeout: Seconds) -> None:
        super().__init__(config)
        self._drain, self._shutdown_timeout = drain, shutdown_timeout
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears signals
            return
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_then_exit())
        else:
            self.should_exit = self.force_exit = True

    async def cut(self) -> None:
        """End the requests that are still open; each says so to its client (frame.py, sse.py)."""
        requests = set(self.server_state.tasks)
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests, timeout=_CUT_SECONDS)

    async def _drain_then_exit(self) -> None:
        self._drain.begin()
        log.info("draining: %d open requests may finish; a second signal stops at once", self._drain.open)
        if not await self._drain.drained(self._shutdown_timeout):
            log.warning("%d requests did not finish within %g s", self._drain.open, self._shutdown_timeout)
            await self.cut()
        self.should_exit = True
