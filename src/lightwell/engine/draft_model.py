"""DraftModel: a small model with the same vocabulary writes ahead, and the large one checks it.

The draft draws with the seed and the positions of the request itself. The noise of a draw depends on nothing else
(sampling/noise.py), so both models mostly pick the same token where their scores are close (Daliri, Musco & Suresh,
"Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from lightwell.engine.batch import BatchBuilder
from lightwell.engine.scheduler import Chunk, SchedulerLimits
from lightwell.engine.sequence import Sequence
from lightwell.engine.speculation import MOST_PROPOSED, Acceptance, worthwhile
from lightwell.events import Event, Finished, Preempted, Speculated, Stepped
from lightwell.kv.block_pool import BlockPool
from lightwell.runtimes.base import Runtime
from lightwell.units import Seconds, Tokens

_FIRST_COST = 0.3


@dataclass(slots=True)
class _Recent:
    """A mean of durations that forgets; 0 before the first."""

    mean: Seconds = 0.0

    def add(self, duration: Seconds) -> None:
        self.mean = duration if not self.mean else self.mean + (duration - self.mean) / 16


@dataclass(eq=False, slots=True)
class _Shadow:
    """A sequence as the draft model has it: the first ``confirmed`` known tokens are the target's, the rest guesses."""

    sequence: Sequence
    confirmed: Tokens
    acceptance: Acceptance = field(default_factory=Acceptance)

    def follow(self, known: list[int]) -> None:
        """Go on from what the target knows now; of the guesses that were wrong nothing remains."""
        mine, agreed = self.sequence.known, self.confirmed
        while agreed < min(len(mine), len(known)) and mine[agreed] == known[agreed]:
            agreed += 1
        mine[agreed:] = known[agreed:]
        self.sequence.computed = min(self.sequence.computed, agreed, len(known) - 1)
        self.confirmed = len(known)


class DraftModel:
    """A Speculator that guesses at most ``most`` tokens. ``runtime`` has a model loaded, and KV blocks for ``limits``
    allocated that are the draft's own."""

    def __init__(self, runtime: Runtime, limits: SchedulerLimits, most: Tokens = MOST_PROPOSED) -> None:
        self._runtime, self._limits, self._most = runtime, limits, most
        self._pool = BlockPool(limits.blocks, limits.block_tokens, prefix_cache=limits.prefix_cache)
        self._batch = BatchBuilder(limits)
        self._shadows: dict[str, _Shadow] = {}
        self._guess_seconds = _Recent()
        self._step_seconds = _Recent()

    def propose(self, chunks: Items[Chunk]) -> list[list[int]]:
        wanted = {chunk.sequence.request.id: self._wanted(chunk, len(chunks)) for chunk in chunks if chunk.samples}
        drafting = {id: count for id, count in wanted.items() if count}
        guesses: dict[str, list[int]] = {id: [] for id in drafting}
        budget = self._limits.max_step_tokens
        while drafting:
            drawn = self._step(list(drafting), budget)
            for id, token in drawn.items():
                guesses[id].append(token)
                self._shadows[id].sequence.known.append(token)
            drafting = {id: drafting[id] - 1 for id in drawn if drafting[id] > 1}
        return [guesses.get(chunk.sequence.request.id, []) for chunk in chunks]

    def observe(self, events: Items[Event]) -> None:
        for event in events:
            match event:
                case Stepped() if event.tokens <= (1 + self._most) * event.sequences:  # no prefill in it
                    self._step_seconds.add(event.duration)
                case Speculated():
                    self._shadows[event.request].acceptance.learn(event.proposed, event.accepted)
                case Finished() | Preempted():
                    shadow = self._shadows.pop(event.request, None)
                    if shadow is not None:
                        self._pool.release(shadow.sequence.table)

    def _wanted(self, chunk: Chunk, sequences: int) -> Tokens:
        """How many guesses are worth making for a chunk; brings its shadow to where the target is."""
        target = chunk.sequence
        shadow = self._shadows.get(target.request.id)
        if shadow is None:
            shadow = self._shadows[target.request.id] = self._new_shadow(target)
        shadow.follow(target.known)
        self._pool.seal(shadow.sequence.table, shadow.sequence.known, shadow.sequence.computed)
        in_answer = target.request.max_tokens - target.output_tokens - 1
        room = min(in_answer, self._limits.context_tokens - len(target.known))
        count = min(worthwhile(shadow.acceptance.rate, sequences, self._most, self._cost()), room)
        if count <= 0:
            shadow.acceptance.recover()
        return max(0, count)

    def _cost(self) -> float:
        """Of one guess, as a share of a step; a guess at it before both have been seen."""
        step = self._step_seconds.mean
        return self._guess_seconds.mean / step if step else _FIRST_COST

    def _new_shadow(self, target: Sequence) -> _Shadow:
        request = target.request
        shadow = Sequence(request, target.number, target.queued_at, self._pool.new_table(request.salt), row=target.row)
        shadow.known = list(target.known)
        found = self._pool.find(shadow.table, shadow.known)
        self._pool.take(shadow.table, found)
        shadow.computed = len(found) * self._limits.block_tokens
        return _Shadow(shadow, len(shadow.known))

    def _step(self, ids: list[str], budget: Tokens) -> dict[str, int]:
        """Compute what the draft has not computed yet, as far as its blocks and ``budget`` tokens go; returns the next
        token of each that has caught up."""
        chunks = []
        for id in ids:
            sequence = self._shadows[id].sequence
            tokens = min(sequence.remaining, budget)
            if tokens > 0 and self._make_room(sequence, sequence.computed + tokens):
                budget -= tokens
                chunks.append(Chunk(sequence, sequence.computed, tokens, tokens == sequence.remaining))
        if not chunks:
            return {}
        output = self._runtime.execute(self._batch.build(chunks))
        if all(chunk.tokens == 1 for chunk in chunks):
            self._guess_seconds.add(output.duration)
        for chunk in chunks:
            chunk.sequence.computed += chunk.tokens
        drawn = [chunk.sequence.request.id for chunk in chunks if chunk.samples]
        return dict(zip(drawn, output.tokens.tolist(), strict=True))

    def _make_room(self, sequence: Sequence, tokens: Tokens) -> bool:
        needed = self._pool.blocks_for(tokens) - len(sequence.table.blocks)
        if needed > self._pool.free_blocks:
            return False
        self._pool.extend(sequence.table, tokens)
        return True
