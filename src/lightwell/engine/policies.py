"""The scheduler's named hooks and their defaults: who starts first, when there is room, how the step's budget is split.

Each is a plain function of what it is given, so that a test or a simulation can put another in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lightwell.engine.sequence import Sequence
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

    needed: int  # by the request, for all its known tokens, beyond cached blocks that others hold anyway
    available: int
    running: int  # sequences


Order: TypeAlias = Callable[[Sequence], tuple[int, ...]]
Admit: TypeAlias = Callable[[Room, SchedulerLimits], bool]
Budget: TypeAlias = Callable[[int, SchedulerLimits], Tokens]
Split: TypeAlias = Callable[[Tokens, list[Sequence], SchedulerLimits], list[tuple[Sequence, Tokens]]]


def by_priority(sequence: Sequence) -> tuple[int, ...]:
    """The queue's order: priority, then preempted ones before fresh ones, then arrival."""
    return sequence.request.priority, not sequence.preemptions, sequence.number


def whole_prompt_and_watermark(room: Room, limits: SchedulerLimits) -> bool:
    """Start only where all known tokens fit and the watermark stays free, so that a prompt is not begun that cannot
    be ended (vllm PR#37307) and running ones can grow (vllm PR#44594). Nothing is kept back from the only one."""
    reserve = int(limits.blocks * limits.watermark) if room.running else 0
    return room.needed + reserve <= room.available


def whole_step(decoding: int, limits: SchedulerLimits) -> Tokens:
    """Tokens for prefill: what the decoding sequences leave of the step."""
    return limits.max_step_tokens - decoding


def within_itl(target: Seconds, step_seconds: Callable[[int, Tokens], Seconds]) -> Budget:
    """A budget that keeps a step with decoding sequences in it within ``target``, the inter-token latency asked for.

    ``step_seconds(decoding, prefill_tokens)`` is a cost model that grows with the tokens. Prefill always gets at least
    one token, so it goes on even where decoding alone takes longer than the target.
    """

    def budget(decoding: int, limits: SchedulerLimits) -> Tokens:
        most = whole_step(decoding, limits)
        if not decoding or step_seconds(decoding, most) <= target:
            return most
        fits, exceeds = 1, most
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            fits, exceeds = (middle, exceeds) if step_seconds(decoding, middle) <= target else (fits, middle)
        return fits

    return budget


def short_first(budget: Tokens, sequences: list[Sequence], limits: SchedulerLimits) -> list[tuple[Sequence, Tokens]]:
    """Split the prefill budget: the most urgent class first, in it the shortest remaining prompt first.

    So a short prompt does not wait behind a long one (vllm#10774). The first to arrive of the most urgent class is
    always left half of the budget, so a stream of short prompts at most halves the speed of a long one.
    """
    if not sequences:
        return []
    oldest = min(sequences, key=lambda s: s.urgency)
    reserved = min(oldest.remaining, -(-budget // 2))
    shares: dict[Sequence, Tokens] = {}
    for sequence in sorted(sequences, key=lambda s: (s.request.priority, s.remaining, s.number)):
        if sequence is oldest:
            reserved = 0
        share = _to_block_end(sequence, min(sequence.remaining, budget - reserved), limits.block_tokens)
        if share > 0:
            shares[sequence] = share
            budget -= share
    for sequence, share in shares.items():  # what was cut off at the ends of blocks and nobody took
        rest = min(sequence.remaining - share, budget)
        shares[sequence] += rest
        budget -= rest
    return list(shares.items())


def _to_block_end(sequence: Sequence, share: Tokens, block_tokens: Tokens) -> Tokens:
    """Let a chunk that does not reach the end of the known tokens end with a block if it can: from there on the
    sequence can take over blocks that another one with the same prompt has computed meanwhile."""
    end = sequence.computed + share
    block_end = end - end % block_tokens
    return share if end == len(sequence.known) or block_end <= sequence.computed else block_end - sequence.computed


@dataclass(frozen=True, slots=True)
class Policies:
    order: Order = by_priority
    admit: Admit = whole_prompt_and_watermark
    budget: Budget = whole_step
    split: Split = short_first
