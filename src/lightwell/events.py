"""The event log: everything the engine and the gateway do, as typed events in the order they happened.

Answers, metrics, traces and the request account are all readings of this log; there is no second bookkeeping.
Events are msgspec structs, so the very same objects travel from the engine's process to its client.
``at`` is in seconds on the clock of the engine that emitted the event (time.monotonic in real life).
"""

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from lightwell.units import Bytes, Seconds, Tokens

FREE_BLOCKS = "free KV blocks"  # the limit that refused a request which could run at another time


class _Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    at: Seconds


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities before temperature and filters: the chosen token's, and the best candidates."""

    chosen: float
    top_ids: list[int]
    top: list[float]


class Queued(_Event, frozen=True):
    """A request reached the engine's queue."""

    request: str
    prompt_tokens: Tokens
    max_tokens: Tokens
    priority: int


class Blocked(_Event, frozen=True):
    """The request at the head of the queue could not start; emitted when the reason changes, not every step."""

    request: str
    # "blocks" (no room for what it is promised and the watermark), "sequences" (the batch is full), or "batch" (with
    # static batching: the batch that runs has not ended)
    reason: str
    needed_blocks: int
    free_blocks: int  # and not promised to a running sequence


class Admitted(_Event, frozen=True):
    """A request got its first blocks (again, after a preemption) and joins the batch."""

    request: str
    cached_tokens: Tokens
    waited: Seconds
    resumed: bool


class Reused(_Event, frozen=True):
    """A running sequence took over known tokens from the cache: blocks that another one had computed since it was
    admitted, or the shared beginning of a block, as a copy."""

    request: str
    start: Tokens
    tokens: Tokens


class Prefilled(_Event, frozen=True):
    """One chunk of a sequence's known tokens was computed; after the last one Sampled follows.

    Single tokens of a sequence that already has output are decoding: they show as Sampled alone.
    """

    request: str
    start: Tokens
    tokens: Tokens


class PromptScored(_Event, frozen=True):
    """Log-probabilities of the prompt's own tokens from ``start`` on (never of the first, which follows nothing)."""

    request: str
    start: Tokens
    scores: list[TokenLogprobs]


class Embedded(_Event, frozen=True):
    """The vector that a request asked for, of Euclidean length 1: little-endian float32."""

    request: str
    values: bytes


class Sampled(_Event, frozen=True):
    """One new token of the answer."""

    request: str
    token: int
    logprobs: TokenLogprobs | None = None


class Speculated(_Event, frozen=True):
    """Proposed tokens of a sequence were checked in one step; the accepted ones came as Sampled, with one more."""

    request: str
    proposed: Tokens
    accepted: Tokens


class Preempted(_Event, frozen=True):
    """A running sequence lost its blocks; it will be computed again from its tokens."""

    request: str
    freed_blocks: int
    computed_tokens: Tokens


class Finished(_Event, frozen=True):
    """The last event of a request that ran. ``detail`` says more about the reason where there is more to say."""

    request: str
    reason: str  # "stop", "length", "abort"; "error" where its engine died and it does not go on
    prompt_tokens: Tokens
    cached_tokens: Tokens
    output_tokens: Tokens
    detail: str = ""


class Rejected(_Event, frozen=True):
    """The last event of a request that cannot ever run here, or not now (FREE_BLOCKS), with both numbers."""

    request: str
    needed_tokens: Tokens
    limit_tokens: Tokens
    limit: str  # "context window", "KV cache" or FREE_BLOCKS


class Stepped(_Event, frozen=True):
    """One pass through the model."""

    duration: Seconds  # in the runtime
    sequences: int
    tokens: Tokens
    running: int
    waiting: int
    used_blocks: int  # held by sequences
    total_blocks: int
    offloaded_blocks: int = 0  # written to the offload store
    restored_blocks: int = 0  # read from it


class Loaded(_Event, frozen=True):
    """A model is in memory and its KV cache is allocated."""

    model: str
    weight_bytes: Bytes
    workspace_bytes: Bytes
    kv_bytes: Bytes
    kv_blocks: int


class Died(_Event, frozen=True):
    """The engine's process ended. Its open requests lost their blocks; they go on from their tokens after Loaded."""

    how: str
    requests: int  # that it had


Event: TypeAlias = (
    Queued
    | Blocked
    | Admitted
    | Reused
    | Prefilled
    | PromptScored
    | Embedded
    | Sampled
    | Speculated
    | Preempted
    | Finished
    | Rejected
    | Stepped
    | Loaded
    | Died
)


class EventLog:
    """A ring buffer of events. Appending is cheap; each reader keeps its own cursor and learns if it fell behind."""

    def __init__(self, capacity: int = 65536) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._end = 0  # number of events ever appended

    def append(self, event: Event) -> None:
        self._events.append(event)
        self._end += 1

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.append(event)

    def forget(self, cursor: int) -> None:
        """Let go of the events before ``cursor``, where the only reader has read them."""
        while self._events and self._end - len(self._events) < cursor:
            self._events.popleft()

    def read(self, cursor: int) -> tuple[list[Event], int, int]:
        """Return the events after ``cursor``, the next cursor, and how many were overwritten before being read."""
        first = self._end - len(self._events)
        lost = max(0, first - cursor)
        start = max(cursor, first) - first
        events = list(self._events) if start == 0 else [self._events[i] for i in range(start, len(self._events))]
        return events, self._end, lost
