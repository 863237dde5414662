"""Supervisor: starts the engine's process, carries requests to it and events back, and restarts it when it dies.

A request that was open when the engine died ends with EngineDied. An engine that dies too often is given up.
"""

import asyncio
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, EngineDied, InvalidRequest, Overloaded, StartupError
from lightwell.events import Event, Finished, Rejected, Sampled, Stepped
from lightwell.host.client import EngineStatus, Phase
from lightwell.host.messages import (
    Abort,
    EngineConfig,
    Failed,
    Frame,
    FromEngine,
    Hello,
    Refused,
    Stop,
    Submit,
    ToEngine,
)
from lightwell.host.process import WorkerProcess, spawn_worker
from lightwell.host.wire import Unpacker, pack
from lightwell.units import Seconds

_RESTARTS, _RESTART_WINDOW_SECONDS = 5, 60.0  # more deaths than this within the window: give up
_STOP_SECONDS = 5.0

_Outcome = Sampled | Finished | Exception


class Supervisor:
    """An EngineClient whose engine runs in a process of its own on this machine."""

    def __init__(self, config: EngineConfig, worker: WorkerProcess | None = None) -> None:
        """``worker``: one that was started earlier, to save time."""
        self._config = config
        self._phase: Phase = "loading"
        self._hello: Hello | None = None
        self._open: dict[str, asyncio.Queue[_Outcome]] = {}
        self._requests: dict[str, Request] = {}
        self._readers: list[Callable[[list[Event]], None]] = []
        self._last_step: Stepped | None = None
        self._progress_at: Seconds = time.monotonic()
        self._deaths: deque[Seconds] = deque(maxlen=_RESTARTS)
        self._socket, self._process = worker or spawn_worker()
        self._socket.sendall(pack(config))  # it loads while the caller goes on with other things
        self._writer: asyncio.StreamWriter | None = None
        self._life: asyncio.Task[None] | None = None

    # The EngineClient protocol.

    @property
    def hello(self) -> Hello:
        if self._hello is None:
            raise Overloaded("The model is still loading. Try again in a moment.")
        return self._hello

    @property
    def status(self) -> EngineStatus:
        step = self._last_step
        busy = bool(self._open)
        return EngineStatus(
            phase=self._phase,
            running=step.running if step and busy else 0,
            waiting=step.waiting if step and busy else 0,
            used_blocks=step.used_blocks if step else 0,
            total_blocks=self._config.kv_blocks,
            last_step_age=time.monotonic() - self._progress_at if busy else 0.0,
        )

    def subscribe(self, reader: Callable[[list[Event]], None]) -> None:
        self._readers.append(reader)

    async def stream(self, request: Request) -> AsyncIterator[Sampled | Finished]:
        if self._phase != "ready":
            raise Overloaded(f"The engine is {self._phase}. Try again in a moment.")
        if not self._open:
            self._progress_at = time.monotonic()  # an idle engine made no progress because it had nothing to do
        outcomes = self._open[request.id] = asyncio.Queue()
        self._requests[request.id] = request
        self._send(Submit(request))
        ended = False
        try:
            while not ended:
                outcome = await outcomes.get()
                ended = not isinstance(outcome, Sampled)
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        finally:
            del self._open[request.id], self._requests[request.id]
            if not ended:
                self._send(Abort(request.id))

    # The life of the process.

    async def start(self) -> Hello:
        """Wait until the engine is loaded. Raises StartupError where it cannot start."""
        hello = await self._connect()
        self._life = asyncio.create_task(self._live())
        return hello

    async def given_up(self) -> None:
        """Return once the engine has died too often, or could not be started again."""
        assert self._life is not None, "start() comes first"
        await self._life

    async def stop(self) -> None:
        """End the engine's process; open requests end with EngineDied."""
        self._phase = "stopped"
        if self._life is not None:
            self._life.cancel()
        self._send(Stop())
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        self._fail_open("The server is stopping.")
        await asyncio.to_thread(_end, self._process)

    async def _connect(self) -> Hello:
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._unpacker: Unpacker[FromEngine] = Unpacker(FromEngine)
        first = await self._first_message()
        if isinstance(first, Hello):
            self._hello, self._phase = first, "ready"
            return first
        code = await asyncio.to_thread(self._process.wait)
        raise StartupError(first.message if first else f"The engine's process ended while loading (exit code {code}).")

    async def _first_message(self) -> Hello | Failed | None:
        while data := await self._reader.read(1 << 16):
            for message in self._unpacker.feed(data):
                assert isinstance(message, Hello | Failed), "an engine says how it started before anything else"
                return message
        return None

    async def _live(self) -> None:
        """Read frames while the process lives; restart it when it dies."""
        while True:
            await self._read_frames()
            if not await self._restart():
                return

    async def _read_frames(self) -> None:
        try:
            while data := await self._reader.read(1 << 18):
                for message in self._unpacker.feed(data):
                    match message:
                        case Frame(events):
                            self._deliver(events)
                        case Refused(request_id, why):
                            self._give(request_id, InvalidRequest(why))
        except ConnectionError:
            return

    async def _restart(self) -> bool:
        self._phase = "restarting"
        code = await asyncio.to_thread(self._process.wait)
        self._fail_open(f"The engine's process ended (exit code {code}); it is being restarted. Try again.")
        self._deaths.append(time.monotonic())
        if len(self._deaths) == _RESTARTS and self._deaths[-1] - self._deaths[0] < _RESTART_WINDOW_SECONDS:
            self._phase = "stopped"
            return False
        self._socket, self._process = spawn_worker()
        self._socket.sendall(pack(self._config))
        try:
            await self._connect()
        except StartupError:
            self._phase = "stopped"
            return False
        return True

    # Messages.

    def _send(self, message: ToEngine) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    def _deliver(self, events: list[Event]) -> None:
        for reader in self._readers:
            reader(events)
        for event in events:
            match event:
                case Sampled() | Finished():
                    self._give(event.request, event)
                case Rejected():
                    self._give(event.request, self._rejection(event))
                case Stepped():
                    self._last_step, self._progress_at = event, time.monotonic()

    def _give(self, request_id: str, outcome: _Outcome) -> None:
        if (outcomes := self._open.get(request_id)) is not None:
            outcomes.put_nowait(outcome)

    def _rejection(self, event: Rejected) -> Exception:
        request = self._requests.get(event.request)
        prompt = len(request.tokens) if request else event.needed_tokens
        return ContextLengthExceeded(prompt, event.needed_tokens - prompt, event.limit_tokens, event.limit)

    def _fail_open(self, why: str) -> None:
        self._last_step = None
        for outcomes in self._open.values():
            outcomes.put_nowait(EngineDied(why))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
