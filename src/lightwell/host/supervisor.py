"""Supervisor: starts the engine's process, carries requests to it and events back, and restarts it when it dies.

Open requests go on in the next process from the tokens that they have; the ledger says how, and which of them is to
blame where engines keep dying. An engine whose step does not come back is killed, and has died then like any other.
"""

import asyncio
import logging
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from lightwell.engine.request import Request
from lightwell.errors import EngineDied, InvalidRequest, KillsEngine, Overloaded, StartupError
from lightwell.events import Died, Embedded, Event, Finished, Loaded, PromptScored, Rejected, Sampled, Stepped
from lightwell.host.client import EngineStatus, Output, Phase
from lightwell.host.ledger import Ledger
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
from lightwell.host.rejection import rejection
from lightwell.host.wire import Unpacker, pack
from lightwell.units import Seconds

STEP_TIMEOUT_SECONDS = 300.0
MOST_WAITING = 1024  # requests without an engine: what is more is better tried again, maybe elsewhere
_VAIN_LIVES = 5  # so many engines in a row that died without having brought anything: give up
_CALM_SECONDS = 60.0  # an engine without work that lived this long did not die in vain
_STOP_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0  # what a process whose connection is closed gets to end by itself
_TICKS = 20  # looks of the watchdog within the step's time limit

_Outcome = Output | Exception

log = logging.getLogger(__name__)


class Supervisor:
    """An EngineClient whose engine runs in a process of its own on this machine."""

    def __init__(
        self,
        config: EngineConfig,
        worker: WorkerProcess | None = None,
        step_timeout: Seconds = STEP_TIMEOUT_SECONDS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """``worker``: one that was started earlier, to save time. ``step_timeout`` 0 lets a step take any time. While
        there is no engine ``most_waiting`` requests wait for it; more are refused."""
        self._config = config
        self._step_timeout, self._most_waiting = step_timeout, most_waiting
        self._phase: Phase = "loading"
        self._hello: Hello | None = None
        self._ledger = Ledger()
        self._streams: dict[str, asyncio.Queue[_Outcome]] = {}
        self._requests: dict[str, Request] = {}
        self._readers: list[Callable[[list[Event]], None]] = []
        self._last_step: Stepped | None = None
        self._progress_at: Seconds = time.monotonic()
        self._vain_lives = 0
        self._frames = 0
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._begin_life(worker or spawn_worker())

    # The EngineClient protocol.

    @property
    def hello(self) -> Hello:
        if self._hello is None:
            raise Overloaded("The model is still loading. Try again in a moment.")
        return self._hello

    @property
    def status(self) -> EngineStatus:
        step = self._last_step
        busy = bool(self._streams)
        held = self._ledger.held
        return EngineStatus(
            phase="restarting" if held and self._phase == "ready" else self._phase,
            running=step.running if step and busy else 0,
            waiting=(step.waiting if step and busy else 0) + held,
            used_blocks=step.used_blocks if step else 0,
            total_blocks=self._config.kv_blocks,
            last_step_age=time.monotonic() - self._progress_at if busy else 0.0,
        )

    def subscribe(self, reader: Callable[[list[Event]], None]) -> None:
        self._readers.append(reader)

    async def stream(self, request: Request) -> AsyncIterator[Output]:
        if self._phase not in ("ready", "restarting"):
            raise Overloaded(f"The engine is {self._phase}. Try again in a moment.")
        if self._ledger.held >= self._most_waiting:
            raise Overloaded(
                f"The engine is being restarted, and {self._ledger.held} requests wait for it already. "
                "Try again in some seconds."
            )
        now = time.monotonic()
        self._publish([self._ledger.add(request, now)])
        if not self._streams:
            self._progress_at = now  # an idle engine made no progress because it had nothing to do
        outcomes = self._streams[request.id] = asyncio.Queue()
        self._requests[request.id] = request
        self._submit()
        ended = False
        try:
            while not ended:
                outcome = await outcomes.get()
                ended = not isinstance(outcome, PromptScored | Embedded | Sampled)
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        finally:
            del self._streams[request.id], self._requests[request.id]
            if not ended:
                self._leave(request.id)

    def _leave(self, request_id: str) -> None:
        match self._ledger.leave(request_id, time.monotonic()):
            case Abort() as abort:
                self._send(abort)
            case Finished() as finished:
                self._publish([finished])
        self._submit()  # it may have been the one that others waited for

    # The life of the process.

    async def start(self) -> Hello:
        """Wait until the engine is loaded. Raises StartupError where it cannot start."""
        hello = await self._connect()
        self._tasks = [asyncio.create_task(self._live())]
        if self._step_timeout > 0:
            self._tasks.append(asyncio.create_task(self._watch()))
        return hello

    async def given_up(self) -> None:
        """Return once engines have died too often in vain. Open requests have ended with EngineDied then."""
        assert self._tasks, "start() comes first"
        await self._tasks[0]

    async def stop(self) -> None:
        """End the engine's process; open requests end with EngineDied."""
        self._phase = "stopped"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._send(Stop())
        self._close_connection()
        self._fail_open("The server is stopping.")
        await asyncio.to_thread(_end, self._process, _STOP_SECONDS)

    def _begin_life(self, worker: WorkerProcess) -> None:
        """Let the worker load; the caller may go on with other things."""
        self._socket, self._process = worker
        self._writer = None
        self._socket.sendall(pack(self._config))

    async def _connect(self) -> Hello:
        self._began = time.monotonic()
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._unpacker: Unpacker[FromEngine] = Unpacker(FromEngine)
        first = await self._first_message()
        if not isinstance(first, Hello):
            how = await asyncio.to_thread(_end, self._process, _STOP_SECONDS)
            raise StartupError(first.message if first else f"The engine's process ended while loading ({how}).")
        self._hello, self._phase, self._progress_at = first, "ready", time.monotonic()
        self._publish([_loaded(first, self._progress_at)])
        self._submit()
        return first

    async def _first_message(self) -> Hello | Failed | None:
        while data := await self._reader.read(1 << 16):
            for message in self._unpacker.feed(data):
                assert isinstance(message, Hello | Failed), "an engine says how it started before anything else"
                return message
        return None

    async def _live(self) -> None:
        """Read frames while the process lives; start another when it dies, until too many have died in vain."""
        while self._vain_lives < _VAIN_LIVES:
            await self._read_frames()
            await self._bury()
            while self._vain_lives < _VAIN_LIVES and not await self._restart():
                self._vain_lives += 1
        self._phase = "stopped"
        self._fail_open("The engine's process died too often; the server is giving up.")

    async def _read_frames(self) -> None:
        try:
            while data := await self._reader.read(1 << 18):
                for message in self._unpacker.feed(data):
                    match message:
                        case Frame(events):
                            self._deliver(events)
                        case Refused(request_id, why):
                            self._refused(request_id, why)
        except ConnectionError:
            return
        except msgspec.MsgspecError as error:  # native code that runs wild may write anything before it dies
            log.error("what the engine says makes no sense: %s", error)

    async def _bury(self) -> None:
        """See that the process has ended, and say how; then hold what it had, and end what is to blame."""
        self._phase, self._last_step = "restarting", None
        self._close_connection()
        how = await asyncio.to_thread(_end, self._process, _LAST_WORDS_SECONDS)
        now, requests = time.monotonic(), self._ledger.inside
        log.error("the engine's process ended (%s) with %d open requests", how, requests)
        calm = not self._streams and now - self._began >= _CALM_SECONDS
        aftermath = self._ledger.died(now)
        if aftermath.fruitful or calm:
            self._vain_lives = 0
        elif not aftermath.convicted:
            self._vain_lives += 1
        self._publish([Died(now, how, requests), *aftermath.ended])
        for request_id in aftermath.convicted:
            log.error("request %s is given up: it killed two engines that had nothing else to do", request_id)
            self._give(request_id, KillsEngine(request_id))

    async def _restart(self) -> bool:
        try:
            self._begin_life(spawn_worker())
            await self._connect()
        except (StartupError, OSError) as error:
            log.error("the engine could not be started again: %s", error)
            return False
        log.info("a new engine is loaded after %.2f s", time.monotonic() - self._began)
        return True

    async def _watch(self) -> None:
        """Kill an engine that has work and says nothing for the time limit of a step.

        The time is counted in looks, so that it stands still while this process does: one that was stopped, or a
        machine that slept, must not find its engine late.
        """
        pause, silent = self._step_timeout / _TICKS, 0
        while True:
            frames, process = self._frames, self._process
            await asyncio.sleep(pause)
            stuck = (
                self._phase == "ready" and self._ledger.inside and (frames, process) == (self._frames, self._process)
            )
            silent = silent + 1 if stuck else 0
            if silent >= _TICKS:
                log.error("a step did not come back within %g s: the engine is killed", self._step_timeout)
                process.kill()
                silent = 0

    def _close_connection(self) -> None:
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    # Messages.

    def _send(self, message: ToEngine) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    def _submit(self) -> None:
        if self._phase == "ready":
            for request in self._ledger.due():
                self._send(Submit(request))

    def _deliver(self, said: list[Event]) -> None:
        self._frames += 1
        events = self._ledger.read(said)
        self._publish(events)
        for event in events:
            match event:
                case PromptScored() | Embedded() | Sampled() | Finished():
                    self._give(event.request, event)
                case Rejected():
                    self._give(event.request, self._rejection(event))
                case Stepped():
                    self._last_step, self._progress_at = event, time.monotonic()
        self._submit()

    def _publish(self, events: Sequence[Event]) -> None:
        for reader in self._readers:
            reader(list(events))

    def _give(self, request_id: str, outcome: _Outcome) -> None:
        if (outcomes := self._streams.get(request_id)) is not None:
            outcomes.put_nowait(outcome)

    def _refused(self, request_id: str, why: str) -> None:
        self._publish([self._ledger.refused(request_id, time.monotonic())])
        self._give(request_id, InvalidRequest(why))

    def _rejection(self, event: Rejected) -> Exception:
        return rejection(event, self._requests.get(event.request))

    def _fail_open(self, why: str) -> None:
        self._last_step = None
        self._publish(self._ledger.give_up(time.monotonic()))
        for outcomes in self._streams.values():
            outcomes.put_nowait(EngineDied(why))


def _loaded(hello: Hello, now: Seconds) -> Loaded:
    return Loaded(now, hello.model, hello.weight_bytes, hello.workspace_bytes, hello.kv_bytes, hello.kv_blocks)


def _end(process: subprocess.Popen[bytes], patience: Seconds) -> str:
    """See that the process ends, by force where it takes too long; returns how it did."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
    code = process.wait()
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
