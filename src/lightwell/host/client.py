"""EngineClient: what the gateway knows of an engine, wherever it runs."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from lightwell.engine.request import Request
from lightwell.events import Embedded, Event, Finished, PromptScored, Sampled
from lightwell.host.messages import Hello
from lightwell.units import Seconds

Phase: TypeAlias = Literal["loading", "ready", "restarting", "stopped"]
Output: TypeAlias = PromptScored | Embedded | Sampled | Finished  # what an engine says to the one who asked


@dataclass(frozen=True)
class EngineStatus:
    """Where the engine stands, from its last frame."""

    phase: Phase
    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    last_step_age: Seconds = 0.0  # since the last step while there is work; 0 when idle


class EngineClient(Protocol):
    @property
    def hello(self) -> Hello:
        """What the engine said of itself when it was loaded."""
        ...

    @property
    def status(self) -> EngineStatus: ...

    def stream(self, request: Request) -> AsyncIterator[Output]:
        """Submit the request and yield its tokens as they come; the last item is Finished.

        Where the prompt's own log-probabilities were asked for, they come before the first token; where a vector was,
        it comes instead of any.

        Leaving the iteration early (break, cancellation, aclose) aborts the request. While an engine that died is
        being restarted the request waits, or goes on after a pause. Raises ContextLengthExceeded where the engine
        rejects it for good, KillsEngine where it is what engines die of, EngineDied where none is started any more,
        Overloaded where none has been loaded yet, or where it rejects the request for now.
        """
        ...

    def subscribe(self, reader: Callable[[list[Event]], None]) -> None:
        """Call ``reader`` with the events of every frame, in order (metrics are such a reader)."""
        ...
