"""Sequence: one continuation being written for a request. The only mutable state of the engine."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lightwell.engine.request import Request
from lightwell.kv.block_pool import BlockTable
from lightwell.units import Seconds, Tokens


class Status(Enum):
    WAITING = "waiting"  # in the queue; holds no blocks
    RUNNING = "running"  # in the batch
    ABORTING = "aborting"  # aborted while the step that it is part of executes; leaves at the end of that step
    FINISHED = "finished"


class Ending(NamedTuple):
    """Why an answer ends: what Finished says."""

    reason: str
    detail: str = ""


ABORT = Ending("abort")


@dataclass(eq=False, slots=True)
class Sequence:
    """``known`` are the prompt's tokens and those of the answer so far; the KV of the first ``computed`` of them is in
    ``table``. ``number`` counts arrivals. ``row`` is its place among the runtime's inputs while it runs. ``scored``
    counts the positions after which the next token's log-probability was reported, where the prompt's are asked for;
    ``pooled`` those of the prompt whose hidden states were given out or are not needed, where a vector is asked for."""

    request: Request
    number: int
    queued_at: Seconds  # or preempted at: since when it waits
    table: BlockTable
    known: list[int] = field(init=False)
    computed: Tokens = 0
    scored: Tokens = 0
    pooled: Tokens = field(init=False)
    cached_tokens: Tokens = 0  # of the prompt, found in the prefix cache when it first ran
    status: Status = Status.WAITING
    ending: Ending = ABORT  # why, where it is aborting
    row: int = -1
    preemptions: int = 0
    bypassed: int = 0  # how many later ones started while this one waited for blocks
    blocked: str | None = None  # the reason last reported

    def __post_init__(self) -> None:
        self.known = self.request.tokens + self.request.answer
        tokens = len(self.request.tokens)
        self.pooled = {"": tokens, "last": tokens - 1, "mean": 0}[self.request.pooling]

    @property
    def remaining(self) -> Tokens:
        """Known tokens still to be computed; 1 means that it is decoding."""
        return len(self.known) - self.computed

    @property
    def to_score(self) -> Tokens:
        """Positions of the prompt whose next token's log-probability is still to be reported."""
        return 0 if self.request.prompt_logprobs is None else len(self.request.tokens) - 1 - self.scored

    @property
    def to_pool(self) -> Tokens:
        """Positions of the prompt whose hidden states are still to be given out."""
        return len(self.request.tokens) - self.pooled

    @property
    def reusable(self) -> list[int]:
        """The known tokens that cached blocks may stand for, and one more: a position to be scored or pooled is
        computed."""
        if self.to_pool > 0:
            return self.known[: self.pooled + 1]
        return self.known[: self.scored + 1] if self.to_score > 0 else self.known

    @property
    def output_tokens(self) -> Tokens:
        return len(self.known) - len(self.request.tokens)

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller is more urgent: priority, then arrival. The largest is preempted first."""
        return self.request.priority, self.number
