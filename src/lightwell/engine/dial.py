"""The dial: step sizes and turns that aim at an inter-token latency (ITL) and a time to first token (TTFT).

Both ask a cost model how long a step would take. ITL sets how many prefill tokens a step may hold beside decoding
sequences. TTFT lets prompts that can still be in time go before those that cannot; it makes steps longer than the ITL
target where a prompt has used up half of its time, and keeps others from passing a head of the queue that has.
"""

from dataclasses import dataclass

from lightwell.engine.cost_model import CostModel, Load
from lightwell.engine.policies import Budget, Moment, Pass, SchedulerLimits, half, seldom_and_equal, whole_step
from lightwell.engine.sequence import Sequence
from lightwell.units import Seconds, Tokens

_HURRY_AFTER = 0.5  # of the TTFT target
_SHARE_OF_LATE = 0.125  # of the prefill budget
_HURRY = 1.5  # times the ITL target may then be taken


def within_itl(target: Seconds, cost: CostModel, ttft: Seconds | None = None) -> Budget:
    """A budget that keeps a step with decoding sequences in it within ``target``, the inter-token latency asked for, or
    1.5 times that while a prompt has waited for more than half of ``ttft``.

    Prefill always gets at least one token, so it goes on even where decoding alone takes longer than the target.
    """

    def budget(moment: Moment) -> Tokens:
        most = whole_step(moment)
        if not moment.decoding or not moment.prefilling:
            return most
        load = Load()
        for sequence in moment.decoding:
            load = load.and_chunk(sequence.computed, 1)
        start = max(sequence.computed for sequence in moment.prefilling)  # at worst all goes to the longest
        hurry = ttft is not None and any(_in_hurry(s, moment.now, ttft) for s in moment.prefilling)
        allowed = target * _HURRY if hurry else target
        fits, exceeds = 1, most + 1
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            seconds = cost.step_seconds(load.and_chunk(start, middle))
            fits, exceeds = (middle, exceeds) if seconds <= allowed else (fits, middle)
        return fits

    return budget


def _in_hurry(sequence: Sequence, now: Seconds, ttft: Seconds) -> bool:
    """Whether it has no first token yet, may still get it in time, and has used up much of that time."""
    waited = now - sequence.queued_at
    return not sequence.output_tokens and _HURRY_AFTER * ttft < waited <= ttft


@dataclass(frozen=True)
class InTime:
    """Who can still have a first token within ``ttft``. One that is too late anyway is not to make others late."""

    ttft: Seconds
    cost: CostModel

    def key(self, sequence: Sequence, now: Seconds) -> tuple[float, ...]:
        """For the split of prefill: those who can, then those who cannot, the shortest first among both."""
        return not self._can(sequence, now), sequence.remaining

    def share_of_oldest(self, oldest: Sequence, now: Seconds) -> float:
        """Enough to go on, where it is late."""
        return half(oldest, now) if self._can(oldest, now) else _SHARE_OF_LATE

    def _can(self, sequence: Sequence, now: Seconds) -> bool:
        """An answer that has begun, and goes on after a preemption, is always in time."""
        needs = self.cost.step_seconds(Load().and_chunk(sequence.computed, sequence.remaining))
        return sequence.output_tokens > 0 or now + needs <= sequence.queued_at + self.ttft


def no_passing_of_the_late(ttft: Seconds) -> Pass:
    """Nobody passes one that has waited for more than half of ``ttft``: its blocks must come free soon."""

    def may_pass(sequence: Sequence, blocked: list[Sequence], now: Seconds, limits: SchedulerLimits) -> bool:
        late = any(now - other.queued_at > _HURRY_AFTER * ttft for other in blocked)
        return not late and seldom_and_equal(sequence, blocked, now, limits)

    return may_pass


def cap_of_long(threshold: Tokens, sequence: Sequence, moment: Moment) -> Tokens:
    """A prompt of more than ``threshold`` tokens gets at most that many of a step while a shorter one is prefilling."""
    if len(sequence.known) <= threshold or all(len(other.known) > threshold for other in moment.prefilling):
        return sequence.remaining
    return threshold
