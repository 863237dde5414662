"""Sequence: one continuation being written for a request. The only mutable state of the engine."""

from dataclasses import dataclass, field
from enum import Enum

from lightwell.engine.request import Request
from lightwell.kv.block_pool import BlockTable
from lightwell.units import Seconds, Tokens


class Status(Enum):
    WAITING = "waiting"  # in the queue; holds no blocks
    RUNNING = "running"  # in the batch
    ABORTING = "aborting"  # aborted while the step that it is part of executes; leaves at the end of that step
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """``known`` are the prompt's tokens and those drawn so far; the KV of the first ``computed`` of them is in
    ``table``. ``number`` counts arrivals. ``row`` is its place among the runtime's inputs while it runs."""

    request: Request
    number: int
    queued_at: Seconds  # or preempted at: since when it waits
    table: BlockTable
    known: list[int] = field(init=False)
    computed: Tokens = 0
    cached_tokens: Tokens = 0  # of the prompt, found in the prefix cache when it first ran
    status: Status = Status.WAITING
    row: int = -1
    preemptions: int = 0
    bypassed: int = 0  # how many later ones started while this one waited for blocks
    blocked: str | None = None  # the reason last reported

    def __post_init__(self) -> None:
        self.known = list(self.request.tokens)

    @property
    def remaining(self) -> Tokens:
        """Known tokens still to be computed; 1 means that it is decoding."""
        return len(self.known) - self.computed

    @property
    def output_tokens(self) -> Tokens:
        return len(self.known) - len(self.request.tokens)

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller is more urgent: priority, then arrival. The largest is preempted first."""
        return self.request.priority, self.number
