"""Scheduler: decides what each step computes, which sequence gets which blocks, who waits, who is preempted or refused.

Plain Python: it never touches a tensor, never blocks, never reads a clock (it is told ``now``) and has no randomness,
so the same calls give the same plans, in the server, in a test and under a virtual clock.

The one rule. A sequence has ``known`` tokens and ``computed`` ones, and a step computes some of the known that are not
computed yet. Prefill, a chunk of it, decoding (one token is missing) and the return after a preemption are all that.
Whenever the last known token is computed, one new token is drawn and becomes known. ``speculate`` may add proposed
tokens to a plan: a token is drawn after each of them as well, and they become known as far as they are what was drawn.

``schedule(now)`` goes through these in this order; each depends on what the ones before it leave behind:

1. Reuse. Prefilling sequences take over blocks that others have computed since; this only ever lowers the need.
2. Make room. Blocks for ALL known tokens of every running sequence are promised to it (or for its longest possible
   answer: allocation.py), though they are taken from the pool chunk by chunk. While the promises exceed the free
   blocks, the least urgent sequence (highest priority number, then newest) is preempted: its blocks are released and it
   is computed again later. After this, no chunk of the step can fail for lack of a block.
3. Make way. Where the head of the queue is strictly more urgent than running ones and cannot start beside them, the
   least urgent are preempted, but only if that is enough to let it start.
4. Admit, unless 2 or 3 preempted: blocks that were just taken away are not handed out again in the same step. Admission
   needs room for all known tokens and the watermark. The queue's order is priority, then preempted before fresh, then
   arrival. One that waits for blocks may be passed by later ones of its priority that fit, ``max_bypasses`` times at
   most and never after a preemption; then nothing starts before it.
5. Compute. Every decoding sequence gets its token; what they leave of the step's budget is split among the prefilling.
   One that begins a block takes over what a cached block shares with it, by a copy; not before it computes, because
   until then another may finish that block, which costs nothing to share.

What always holds between calls (``check`` verifies the books; the tests call it after every step):

- A waiting sequence holds no block. A running one holds blocks for its computed tokens; its promise covers the rest.
- Only ``update`` advances ``computed``, and only then are full blocks made findable: nobody reads a block that has not
  been written. A sequence of the executing step keeps its blocks until ``update``, even where it is aborted meanwhile.
- The most urgent running sequence is never preempted while another one runs, and alone it fits (``submit`` refuses what
  never could), so some sequence always progresses and every request ends.
"""

from bisect import insort
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from lightwell.engine.policies import Ends, Moment, Policies, Room, SchedulerLimits
from lightwell.engine.request import Request
from lightwell.engine.sequence import ABORT, Ending, Sequence, Status
from lightwell.errors import InvalidRequest, InvariantError
from lightwell.events import (
    FREE_BLOCKS,
    Admitted,
    Blocked,
    Event,
    Finished,
    Preempted,
    Prefilled,
    PromptScored,
    Queued,
    Rejected,
    Reused,
    Sampled,
    Speculated,
    TokenLogprobs,
)
from lightwell.kv.block_pool import BlockPool, BlockTable, Copy
from lightwell.units import Seconds, Tokens

__all__ = ["Chunk", "Policies", "Scheduler", "SchedulerLimits", "StepPlan"]


class Chunk(NamedTuple):
    """Compute ``tokens`` known tokens of the sequence from ``start`` on; ``samples``: and draw the one after them.

    ``proposed`` tokens are computed as if they came next, and a token is drawn after each of them too. ``scored``
    tokens of the prompt, those after position ``sequence.scored``, get their log-probabilities reported. Of the
    ``pooled`` positions from ``sequence.pooled`` on the hidden states are given out.
    """

    sequence: Sequence
    start: Tokens
    tokens: Tokens
    samples: bool
    proposed: Items[int] = ()
    scored: Tokens = 0
    pooled: Tokens = 0

    @property
    def draws(self) -> int:
        return 1 + len(self.proposed) if self.samples else 0

    @property
    def results(self) -> int:
        """How many tokens come back for it: those scored, then those drawn."""
        return self.scored + self.draws


Result: TypeAlias = tuple[int, TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, decoding sequences first. ``events`` say what was decided on the way. Without chunks there is nothing
    to execute, and no update. ``copies`` between KV blocks come before the chunks, in their order."""

    chunks: list[Chunk]
    events: list[Event]
    copies: list[Copy]


class Scheduler:
    def __init__(self, limits: SchedulerLimits, policies: Policies | None = None) -> None:
        self.limits = limits
        self.pool = BlockPool(
            limits.blocks,
            limits.block_tokens,
            prefix_cache=limits.prefix_cache,
            offload_slots=limits.offload_slots,
        )
        self.waiting: list[Sequence] = []  # in the queue's order
        self.running: list[Sequence] = []  # in the order of their admission
        self._policies = policies or Policies()
        self._open: dict[str, Sequence] = {}
        self._rows = list(range(limits.max_sequences - 1, -1, -1))
        self._executing = False
        self._planned_at: Seconds = 0.0
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def validate(self, request: Request) -> None:
        """Raises InvalidRequest for a request without tokens, without anything to compute for it, or with the id of
        an open one."""
        _check_request(request)
        if request.id in self._open:
            raise InvalidRequest(f"request {request.id!r} is already open: every request needs its own id")

    def submit(self, request: Request, now: Seconds) -> list[Event]:
        """Queue a request, or refuse it where it could never run here. Raises what ``validate`` raises."""
        self.validate(request)
        refusal = self._refusal(request, now)
        if refusal is not None:
            return [refusal]
        sequence = Sequence(request, self._arrivals, now, self.pool.new_table(request.salt))
        self._arrivals += 1
        self._open[request.id] = sequence
        insort(self.waiting, sequence, key=self._policies.order)
        return [Queued(now, request.id, len(request.tokens), request.max_tokens, request.priority)]

    def abort(self, request_id: str, now: Seconds, ending: Ending = ABORT) -> list[Event]:
        """End a request at any moment. Does nothing for one that is not open: it may just have finished."""
        sequence = self._open.get(request_id)
        if sequence is None:
            return []
        waiting = sequence.status is Status.WAITING
        if self._executing and not waiting:
            sequence.status, sequence.ending = Status.ABORTING, ending
            return []
        (self.waiting if waiting else self.running).remove(sequence)
        return [self._finish(sequence, ending, now)]

    def schedule(self, now: Seconds) -> StepPlan:
        """Plan the next step. A plan with chunks must be executed and given to ``update`` before the next one."""
        events: list[Event] = []
        self._reuse(now, events)
        victims = self._to_make_room(now, events) or self._to_make_way(now, events)
        if not victims:
            self._admit(now, events)
        chunks = self._chunks(now, events)
        for chunk in chunks:
            self.pool.extend(chunk.sequence.table, chunk.start + chunk.tokens)
        self._executing, self._planned_at = bool(chunks), now
        return StepPlan(chunks, events, self.pool.drain_copies() if chunks else [])

    def update(
        self, plan: StepPlan, tokens: Items[int], now: Seconds, logprobs: Items[TokenLogprobs | None] | None = None
    ) -> list[Event]:
        """Take in an executed step: ``tokens`` (and ``logprobs``), the results of each chunk in their order."""
        if len(tokens) != (asked := sum([chunk.results for chunk in plan.chunks])):
            raise InvariantError(f"{len(tokens)} tokens came back from a step that asked for {asked}")
        self._executing = False
        if self._policies.learn is not None:
            done = [(chunk.start, chunk.tokens + len(chunk.proposed)) for chunk in plan.chunks]
            self._policies.learn(done, now - self._planned_at)
        events: list[Event] = []
        results = iter(zip(tokens, logprobs or [None] * len(tokens), strict=True))
        for chunk in plan.chunks:
            result = list(islice(results, chunk.results))
            if chunk.sequence.status is Status.RUNNING:
                self._advance(chunk, result, now, events)
        events += [self._finish(s, s.ending, now) for s in self.running if s.status is Status.ABORTING]
        self.running = [s for s in self.running if s.status is Status.RUNNING]
        return events

    def _advance(self, chunk: Chunk, results: list[Result], now: Seconds, events: list[Event]) -> None:
        sequence = chunk.sequence
        if chunk.tokens > 1 or not sequence.output_tokens:
            events.append(Prefilled(now, sequence.request.id, chunk.start, chunk.tokens))
        sequence.computed += chunk.tokens
        sequence.pooled += chunk.pooled
        if chunk.scored:
            events.append(_take_scores(chunk, results, now))
        ending = _take_drawn(chunk, results[chunk.scored :], self._policies.ends, now, events)
        self.pool.seal(sequence.table, sequence.known, sequence.computed)
        if ending is not None:
            events.append(self._finish(sequence, ending, now))

    def speculate(self, plan: StepPlan, proposals: Items[list[int]]) -> StepPlan:
        """Let the plan's chunks that sample check proposed tokens as well, as many as the step, the free blocks and
        their answers have room for. ``proposals`` has one list for each chunk, empty for none."""
        budget = self.limits.max_step_tokens - sum([chunk.tokens for chunk in plan.chunks])
        chunks = []
        for chunk, proposed in zip(plan.chunks, proposals, strict=True):
            if chunk.samples and proposed and budget > 0:
                chunk = chunk._replace(proposed=proposed[: min(budget, self._room_to_propose(chunk))])
                self.pool.extend(chunk.sequence.table, chunk.start + chunk.tokens + len(chunk.proposed))
                budget -= len(chunk.proposed)
            chunks.append(chunk)
        return StepPlan(chunks, plan.events, plan.copies + self.pool.drain_copies())

    def _room_to_propose(self, chunk: Chunk) -> Tokens:
        """Beyond the proposed tokens one more is drawn, and the answer must not get too long by it."""
        sequence, end = chunk.sequence, chunk.start + chunk.tokens
        blocks = len(sequence.table.blocks) + self._promised(sequence) + max(0, self._available())
        in_answer = sequence.request.max_tokens - sequence.output_tokens - 1
        return max(0, min(in_answer, blocks * self.limits.block_tokens - end))

    def check(self) -> None:
        """Raises InvariantError where blocks, rows or states contradict each other."""
        self.pool.check(s.table for s in self._open.values())
        rows = sorted([s.row for s in self.running] + self._rows)
        if rows != list(range(self.limits.max_sequences)):
            raise InvariantError(f"rows are lost or held twice: {rows}")
        queued = len(self.waiting) + len(self.running)
        if queued != len(self._open) or any(s.table.blocks for s in self.waiting):
            raise InvariantError(
                f"{len(self._open)} open requests, {queued} waiting or running, or a waiting one with blocks"
            )
        for sequence in self.running:
            if sequence.table.sealed * self.limits.block_tokens > sequence.computed:
                raise InvariantError(
                    f"{sequence.request.id}: {sequence.table.sealed} blocks are findable, but only "
                    f"{sequence.computed} tokens are computed"
                )

    def _refusal(self, request: Request, now: Seconds) -> Rejected | None:
        needed = len(request.tokens) + request.max_tokens
        cache_tokens = self.limits.blocks * self.limits.block_tokens
        if needed > self.limits.context_tokens:
            return Rejected(now, request.id, needed, self.limits.context_tokens, "context window")
        if needed > cache_tokens:
            return Rejected(now, request.id, needed, cache_tokens, "KV cache")
        return None

    def _reuse(self, now: Seconds, events: list[Event]) -> None:
        for sequence in self.running:
            if sequence.remaining > 1 and sequence.to_score <= 0:
                tokens = self._take_cached(sequence)
                if tokens:
                    events.append(Reused(now, sequence.request.id, sequence.computed - tokens, tokens))

    def _take_cached(self, sequence: Sequence) -> Tokens:
        """Append the cached blocks that continue a sequence to its table; returns the tokens in them."""
        found = self.pool.find(sequence.table, sequence.reusable)
        return _count_cached(sequence, self.pool.take(sequence.table, found))

    def _available(self) -> int:
        """Free blocks that are not promised to a running sequence; negative where too much is promised."""
        return self.pool.free_blocks - sum([self._promised(sequence) for sequence in self.running])

    def _promised(self, sequence: Sequence) -> int:
        """Blocks that a running sequence has a claim to beyond those it has. For proposals it may have got more."""
        return max(0, self.pool.blocks_for(self._policies.promise(sequence)) - len(sequence.table.blocks))

    def _to_make_room(self, now: Seconds, events: list[Event]) -> bool:
        preempted = False
        while self._available() < 0:
            self._preempt(max(self.running, key=_urgency), now, events)
            preempted = True
        return preempted

    def _to_make_way(self, now: Seconds, events: list[Event]) -> bool:
        """Preempt for a strictly more urgent head of the queue (vllm#40004), if that lets it start."""
        head = self.waiting[0] if self.waiting else None
        lesser = [s for s in self.running if head and self._policies.yields(s, head)]
        if head is None or not lesser:
            return False
        lesser.sort(key=_urgency)
        room, victims = self._room(head, self._available()), []
        while room.running == self.limits.max_sequences or not self._policies.admit(room, self.limits):
            if not lesser:
                return False
            victims.append(lesser.pop())
            gained = self._promised(victims[-1]) + self.pool.held_alone(victims[-1].table)
            room = room._replace(available=room.available + gained, running=room.running - 1)
        for victim in victims:
            self._preempt(victim, now, events)
        return bool(victims)

    def _preempt(self, sequence: Sequence, now: Seconds, events: list[Event]) -> None:
        """Take all blocks away and queue the sequence again with all its known tokens."""
        freed, computed = self._leave(sequence), sequence.computed
        sequence.computed = 0
        sequence.table = self.pool.new_table(sequence.request.salt)
        sequence.status, sequence.queued_at = Status.WAITING, now
        sequence.preemptions += 1
        self.running.remove(sequence)
        insort(self.waiting, sequence, key=self._policies.order)
        events.append(Preempted(now, sequence.request.id, freed, computed))

    def _admit(self, now: Seconds, events: list[Event]) -> None:
        passed: list[Sequence] = []
        stands, available = bool(self.running), self._available()
        for sequence in list(self.waiting):
            if self._awaits_prompt(sequence):
                continue
            if not self._policies.may_pass(sequence, passed, now, self.limits):
                break
            full, room = len(self.running) == self.limits.max_sequences, self._room(sequence, available)
            joins, fits = self._policies.joins(sequence, stands), self._policies.admit(room, self.limits)
            if joins and fits and not full:
                for other in passed:
                    other.bypassed += 1
                self._start(sequence, now, events)
                available = self._available()
                continue
            if not fits and self._policies.refuses(sequence):
                self._refuse(sequence, room, now, events)
                continue
            if not passed:
                reason = "batch" if not joins else "sequences" if full else "blocks"
                self._report_blocked(sequence, reason, room, now, events)
            if full or not joins:
                break
            passed.append(sequence)

    def _awaits_prompt(self, sequence: Sequence) -> bool:
        """Whether it shares its prompt with another one that computes it at this moment, or will before it."""
        other = self._open.get(sequence.request.fork_of)
        return other is not None and not sequence.preemptions and other.computed < len(sequence.request.tokens) - 1

    def _room(self, sequence: Sequence, available: int) -> Room:
        if self._to_fork(sequence):
            shared = (len(sequence.request.tokens) - 1) // self.limits.block_tokens
        else:
            found = self.pool.find(sequence.table, sequence.reusable)
            shared = len(found) - self.pool.free_among(found)
        needed = self.pool.blocks_for(self._policies.promise(sequence)) - shared
        return Room(needed, available, len(self.running))

    def _report_blocked(self, head: Sequence, reason: str, room: Room, now: Seconds, events: list[Event]) -> None:
        if head.blocked != reason:
            head.blocked = reason
            events.append(Blocked(now, head.request.id, reason, room.needed, max(0, room.available)))

    def _refuse(self, sequence: Sequence, room: Room, now: Seconds, events: list[Event]) -> None:
        """End a request that has not begun because there are no blocks for it now."""
        self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        del self._open[sequence.request.id]
        needed, free = (blocks * self.limits.block_tokens for blocks in (room.needed, max(0, room.available)))
        events.append(Rejected(now, sequence.request.id, needed, free, FREE_BLOCKS))

    def _start(self, sequence: Sequence, now: Seconds, events: list[Event]) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        cached = self._fork(sequence) or self._take_cached(sequence)
        self.pool.extend(sequence.table, self._policies.reserve(sequence))
        sequence.status, sequence.row = Status.RUNNING, self._rows.pop()
        sequence.bypassed, sequence.blocked = 0, None
        waited = now - sequence.queued_at
        events.append(Admitted(now, sequence.request.id, cached, waited, sequence.preemptions > 0))

    def _to_fork(self, sequence: Sequence) -> BlockTable | None:
        """The blocks of a running sequence that has computed the prompt that this one says it shares with it."""
        request, other = sequence.request, self._open.get(sequence.request.fork_of)
        if other is None or other.status is not Status.RUNNING or other.computed < len(request.tokens) - 1:
            return None
        same = (other.request.tokens, other.request.salt) == (request.tokens, request.salt)
        return other.table if same and sequence.to_score <= 0 else None

    def _fork(self, sequence: Sequence) -> Tokens:
        """Share a prompt's blocks, but for the last token, after which this sequence draws its own; returns how many
        tokens that is."""
        table, tokens = self._to_fork(sequence), len(sequence.request.tokens) - 1
        if table is None:
            return 0
        self.pool.fork(table, sequence.table, tokens)
        return _count_cached(sequence, tokens)

    def _chunks(self, now: Seconds, events: list[Event]) -> list[Chunk]:
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self.running:
            (decoding if sequence.remaining == 1 else prefilling).append(sequence)
        moment = Moment(now, decoding, prefilling, self.limits)
        chunks = [_chunk(sequence, 1) for sequence in decoding]
        for sequence, share in self._policies.split(self._policies.budget(moment), moment):
            copied = self._take_part(sequence, now, events)
            chunks.append(_chunk(sequence, share - copied if share > copied else min(share, sequence.remaining)))
        return chunks

    def _take_part(self, sequence: Sequence, now: Seconds, events: list[Event]) -> Tokens:
        """Begin the sequence's next block with what a cached one shares with it; returns the tokens of that."""
        start = sequence.computed
        tokens = _count_cached(sequence, self.pool.take_part(sequence.table, sequence.reusable))
        if tokens:
            events.append(Reused(now, sequence.request.id, start, tokens))
        return tokens

    def _finish(self, sequence: Sequence, ending: Ending, now: Seconds) -> Finished:
        """Give everything back. The caller takes the sequence out of the queue or the batch."""
        if sequence.status is not Status.WAITING:
            self._leave(sequence)
        sequence.status = Status.FINISHED
        request = sequence.request
        del self._open[request.id]
        prompt, cached, output = len(request.tokens), sequence.cached_tokens, sequence.output_tokens
        return Finished(now, request.id, ending.reason, prompt, cached, output, ending.detail)

    def _leave(self, sequence: Sequence) -> int:
        """Give back the blocks and the row of a running sequence; returns how many blocks became free."""
        self._rows.append(sequence.row)
        sequence.row = -1
        return self.pool.release(sequence.table, sequence.known, sequence.computed)


def _count_cached(sequence: Sequence, tokens: Tokens) -> Tokens:
    """The next tokens of a sequence came from the cache."""
    sequence.computed += tokens
    if not sequence.preemptions:
        sequence.cached_tokens += tokens
    return tokens


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.urgency


def _check_request(request: Request) -> None:
    if not request.tokens or request.max_tokens < (request.prompt_logprobs is None and not request.pooling):
        raise InvalidRequest(
            f"request {request.id!r} needs at least one prompt token, and max_tokens >= 1 unless the prompt is scored "
            "or pooled"
        )
    if request.pooling and (request.max_tokens or request.prompt_logprobs is not None or request.grammar):
        raise InvalidRequest(f"request {request.id!r} is pooled: it has no answer, and its prompt is not scored")
    if request.answer and len(request.answer) >= request.max_tokens:
        raise InvalidRequest(f"request {request.id!r} is answered already, with {len(request.answer)} tokens")


def _chunk(sequence: Sequence, tokens: Tokens) -> Chunk:
    start = sequence.computed
    samples = tokens == sequence.remaining and sequence.request.max_tokens > 0
    scored = min(start + tokens - sequence.scored, sequence.to_score)
    pooled = min(start + tokens - sequence.pooled, sequence.to_pool)
    return Chunk(sequence, start, tokens, samples, scored=max(0, scored), pooled=max(0, pooled))


def _take_scores(chunk: Chunk, results: list[Result], now: Seconds) -> PromptScored:
    sequence = chunk.sequence
    scores = [logprobs for _, logprobs in results[: chunk.scored] if logprobs is not None]
    event = PromptScored(now, sequence.request.id, sequence.scored + 1, scores)
    sequence.scored += chunk.scored
    return event


def _take_drawn(chunk: Chunk, drawn: list[Result], ends: Ends, now: Seconds, events: list[Event]) -> Ending | None:
    """Append the drawn tokens to the sequence, up to the first that is not what was proposed: what comes after it was
    drawn in a context that never came to be. Returns why the answer ends with them, if it does."""
    sequence, proposed = chunk.sequence, chunk.proposed
    if not drawn:
        if sequence.remaining:
            return None
        return Ending("stop" if sequence.request.pooling else "length")  # a prompt that was only to be pooled or scored
    ending = None
    for place, (token, logprobs) in enumerate(drawn):
        sequence.known.append(token)
        events.append(Sampled(now, sequence.request.id, token, logprobs))
        ending = ends(sequence)
        if ending is not None or place == len(proposed) or proposed[place] != token:
            break
        sequence.computed += 1
    if proposed:
        accepted = sequence.computed - chunk.start - chunk.tokens
        events.append(Speculated(now, sequence.request.id, len(proposed), accepted))
    return ending
