"""The scheduler's named hooks and their defaults: who starts first, when there is room, how the step's budget is split.

Each is a plain function of what it is given, so that a test or a simulation can put another in its place. The others
that there are: allocation.py, batching.py, dial.py, repetition.py; options.py puts them together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeAlias

from lightwell.engine.sequence import Ending, Sequence
from lightwell.errors import StartupError
from lightwell.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What there is to share out. Raises StartupError for limits under which nothing could run.

    ``watermark`` is the fraction of the blocks that admission leaves free for running sequences to grow into.
    ``max_bypasses`` is how many smaller requests may start before one that waits for blocks. ``offload_slots`` is how
    many more blocks the runtime's offload store holds.
    """

    blocks: int
    context_tokens: Tokens
    block_tokens: Tokens = 32
    max_sequences: int = 64
    max_step_tokens: Tokens = 512
    watermark: float = 0.05
    max_bypasses: int = 8
    prefix_cache: bool = True
    offload_slots: int = 0

    def __post_init__(self) -> None:
        if min(self.blocks, self.context_tokens, self.block_tokens, self.max_sequences) < 1:
            raise StartupError("blocks, context_tokens, block_tokens and max_sequences must be at least 1")
        if self.max_step_tokens < self.max_sequences:
            raise StartupError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_sequences ({self.max_sequences}): "
                "a step must hold one token of every running sequence"
            )
        if not 0 <= self.watermark < 1 or self.max_bypasses < 0:
            raise StartupError("watermark must be in [0, 1) and max_bypasses at least 0")


class Room(NamedTuple):
    """KV blocks at the moment of an admission. ``available`` are free and not promised to a running sequence."""

    needed: int  # by the request, for all that would be promised to it, beyond cached blocks that others hold anyway
    available: int
    running: int  # sequences


class Moment(NamedTuple):
    """What there is to share a step among."""

    now: Seconds
    decoding: list[Sequence]
    prefilling: list[Sequence]
    limits: SchedulerLimits


Order: TypeAlias = Callable[[Sequence], tuple[int, ...]]
Admit: TypeAlias = Callable[[Room, SchedulerLimits], bool]
Pass: TypeAlias = Callable[[Sequence, list[Sequence], Seconds, SchedulerLimits], bool]
Join: TypeAlias = Callable[[Sequence, bool], bool]
Yield: TypeAlias = Callable[[Sequence, Sequence], bool]
Refuse: TypeAlias = Callable[[Sequence], bool]
Extent: TypeAlias = Callable[[Sequence], Tokens]
Budget: TypeAlias = Callable[[Moment], Tokens]
Split: TypeAlias = Callable[[Tokens, Moment], list[tuple[Sequence, Tokens]]]
Ends: TypeAlias = Callable[[Sequence], Ending | None]
Learn: TypeAlias = Callable[[list[tuple[Tokens, Tokens]], Seconds], None]


def by_priority(sequence: Sequence) -> tuple[int, ...]:
    """The queue's order: priority, then preempted ones before fresh ones, then arrival."""
    return sequence.request.priority, not sequence.preemptions, sequence.number


def whole_prompt_and_watermark(room: Room, limits: SchedulerLimits) -> bool:
    """Start only where all known tokens fit and the watermark stays free, so that a prompt is not begun that cannot
    be ended (vllm PR#37307) and running ones can grow (vllm PR#44594). Nothing is kept back from the only one."""
    reserve = int(limits.blocks * limits.watermark) if room.running else 0
    return room.needed + reserve <= room.available


def seldom_and_equal(sequence: Sequence, blocked: list[Sequence], now: Seconds, limits: SchedulerLimits) -> bool:
    """Whether it may start before these, which wait for blocks. The less urgent never pass the more urgent, nobody
    passes one that was preempted, and each is passed ``max_bypasses`` times at most."""
    most, priority = limits.max_bypasses, sequence.request.priority
    return len(blocked) <= most and all(
        other.bypassed < most and not other.preemptions and other.request.priority == priority for other in blocked
    )


def continuous(sequence: Sequence, batch_stands: bool) -> bool:
    """A request may join the batch in any step."""
    return True


def to_more_urgent(running: Sequence, head: Sequence) -> bool:
    """A running sequence gives way to a strictly more urgent head of the queue."""
    return running.request.priority > head.request.priority


def never(sequence: Sequence) -> bool:
    return False


def known_tokens(sequence: Sequence) -> Tokens:
    """Paged allocation: a sequence has a claim to blocks for what is known of it, and takes them as it is computed."""
    return len(sequence.known)


def nothing(sequence: Sequence) -> Tokens:
    return 0


def whole_step(moment: Moment) -> Tokens:
    """Tokens for prefill: what the decoding sequences leave of the step."""
    return moment.limits.max_step_tokens - len(moment.decoding)


def shortest_remaining(sequence: Sequence, now: Seconds) -> tuple[float, ...]:
    return (sequence.remaining,)


def half(oldest: Sequence, now: Seconds) -> float:
    return 0.5


def no_cap(sequence: Sequence, moment: Moment) -> Tokens:
    return sequence.remaining


def splitting(
    key: Callable[[Sequence, Seconds], tuple[float, ...]] = shortest_remaining,
    cap: Callable[[Sequence, Moment], Tokens] = no_cap,
    share_of_oldest: Callable[[Sequence, Seconds], float] = half,
) -> Split:
    """A split of the prefill budget: the most urgent class first, in it by ``key``, and to none more than its ``cap``.

    The first to arrive of the most urgent class is always left a share of the budget, by default half, so that a stream
    of short prompts at most halves the speed of a long one.
    """

    def split(budget: Tokens, moment: Moment) -> list[tuple[Sequence, Tokens]]:
        if not moment.prefilling:
            return []
        most = {sequence: min(sequence.remaining, cap(sequence, moment)) for sequence in moment.prefilling}
        oldest = min(moment.prefilling, key=lambda s: s.urgency)
        reserved = min(most[oldest], ceil(budget * share_of_oldest(oldest, moment.now)))
        shares: dict[Sequence, Tokens] = {}
        for sequence in sorted(moment.prefilling, key=lambda s: (s.request.priority, *key(s, moment.now), s.number)):
            if sequence is oldest:
                reserved = 0
            wanted = min(most[sequence], budget - reserved)
            if (share := _to_block_end(sequence, wanted, moment.limits.block_tokens)) > 0:
                shares[sequence] = share
                budget -= share
        for sequence, share in shares.items():  # what was cut off at the ends of blocks and nobody took
            rest = min(most[sequence] - share, budget)
            shares[sequence] += rest
            budget -= rest
        return list(shares.items())

    return split


short_first = splitting()  # so a short prompt does not wait behind a long one (vllm#10774)


def _to_block_end(sequence: Sequence, share: Tokens, block_tokens: Tokens) -> Tokens:
    """Let a chunk that does not reach the end of the known tokens end with a block if it can: from there on the
    sequence can take over blocks that another one with the same prompt has computed meanwhile."""
    end = sequence.computed + share
    block_end = end - end % block_tokens
    return share if end == len(sequence.known) or block_end <= sequence.computed else block_end - sequence.computed


def stop_or_length(sequence: Sequence) -> Ending | None:
    """Why the sequence ends with its last token, if it does. The context window needs no look: ``submit`` has seen to
    it that ``max_tokens`` ends the answer within it."""
    request = sequence.request
    if sequence.known[-1] in request.stop_tokens:
        return Ending("stop")
    return Ending("length") if sequence.output_tokens == request.max_tokens else None


@dataclass(frozen=True, slots=True)
class Policies:
    """``promise``: the tokens for which a running sequence has a claim to blocks; ``reserve``: those whose blocks it
    takes when it starts. ``learn``, where there is one, is told the chunks of each step, as (start, tokens), and how
    long it took."""

    order: Order = by_priority
    admit: Admit = whole_prompt_and_watermark
    may_pass: Pass = seldom_and_equal
    joins: Join = continuous
    yields: Yield = to_more_urgent
    refuses: Refuse = never
    promise: Extent = known_tokens
    reserve: Extent = nothing
    budget: Budget = whole_step
    split: Split = short_first
    ends: Ends = stop_or_length
    learn: Learn | None = None
