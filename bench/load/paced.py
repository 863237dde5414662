"""PacedEngine: an engine client that makes tokens at a steady rate for whoever is open, and remembers when.

Token k of every stream is the k-th letter of the alphabet, round and round: whoever reads a stream sees what was lost
or came in another order.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from lightwell.engine.request import Request
from lightwell.events import Admitted, Event, Finished, Queued, Sampled
from lightwell.host.client import EngineStatus, Output
from lightwell.host.messages import Hello
from lightwell.units import Seconds, Tokens

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_FRAME_SECONDS = 0.002  # tokens of this time come together, as those of an engine's step do


@dataclass
class _Stream:
    request: str
    inbox: asyncio.Queue[Sampled] = field(default_factory=asyncio.Queue)
    made_at: list[Seconds] = field(default_factory=list)  # of each token, on the machine's monotonic clock


class PacedEngine:
    """``letters``: the token of each letter. ``rate``: tokens a second of all streams together, which take turns."""

    def __init__(self, letters: list[int], rate: float, context_tokens: Tokens) -> None:
        self.status = EngineStatus("ready")
        self.hello = Hello("paced", context_tokens, 10**6, 32, 0, 0, 0, {})
        self.made_at: dict[str, list[Seconds]] = {}  # by request, of those that have ended
        self._letters, self._rate = letters, rate
        self._turns: deque[_Stream] = deque()
        self._readers: list[Callable[[list[Event]], None]] = []

    def subscribe(self, reader: Callable[[list[Event]], None]) -> None:
        self._readers.append(reader)

    async def stream(self, request: Request) -> AsyncIterator[Output]:
        now = time.monotonic()
        self._tell([Queued(now, request.id, len(request.tokens), request.max_tokens, 0)])
        self._tell([Admitted(now, request.id, 0, 0.0, False)])
        stream = _Stream(request.id)
        self._turns.append(stream)
        try:
            for _ in range(request.max_tokens):
                yield await stream.inbox.get()
        finally:
            self._turns.remove(stream)
            self.made_at[request.id] = stream.made_at
            made = len(stream.made_at)
            end = Finished(time.monotonic(), request.id, "length", len(request.tokens), 0, made)
            self._tell([end])
        yield end

    async def run(self) -> None:
        """Make tokens until cancelled. What was late is made up for."""
        began, made = time.monotonic(), 0
        while True:
            await asyncio.sleep(_FRAME_SECONDS)
            if not self._turns:
                began, made = time.monotonic(), 0
                continue
            due = int((time.monotonic() - began) * self._rate) - made
            made += due
            self._make(due)

    def _make(self, due: Tokens) -> None:
        """One frame: the events of all its tokens are told together, as those of a step are."""
        now, frame = time.monotonic(), list[tuple[_Stream, Sampled]]()
        for _ in range(due):
            stream = self._turns[0]
            self._turns.rotate(-1)
            letter = self._letters[len(stream.made_at) % len(self._letters)]
            frame.append((stream, Sampled(now, stream.request, letter)))
            stream.made_at.append(now)
        self._tell([event for _, event in frame])
        for stream, event in frame:
            stream.inbox.put_nowait(event)

    def _tell(self, events: list[Event]) -> None:
        for reader in self._readers:
            reader(events)
