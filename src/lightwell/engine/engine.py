"""Engine: the batch loop. Asks the scheduler for a plan, lets the runtime compute it, and logs what came of it."""

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

from lightwell.engine.batch import BatchBuilder, read_logprobs
from lightwell.engine.clocks import Clock
from lightwell.engine.masks import StepMasks
from lightwell.engine.pooler import Pooler
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, StepPlan
from lightwell.engine.sequence import ABORT, Ending
from lightwell.engine.speculation import Speculator
from lightwell.errors import InvalidRequest
from lightwell.events import Event, EventLog, Finished, Rejected, Stepped
from lightwell.runtimes.base import Runtime
from lightwell.sampling.grammar import Matcher
from lightwell.units import Seconds

_PATIENCE: Seconds = 0.02  # for a grammar to be read, before the caller looks after other things again


class Engine:
    """Drives one runtime, whose KV blocks are allocated already. For one thread; every result is in the log."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        log: EventLog,
        clock: Clock,
        speculator: Speculator | None = None,
        masks: StepMasks | None = None,
    ) -> None:
        """``masks``: for requests with a grammar; without, they are refused."""
        self.log = log
        self.scheduler = scheduler
        self._runtime = runtime
        self._clock = clock
        self._speculator = speculator
        self._masks = masks
        self._batch = BatchBuilder(scheduler.limits, masks)
        self._pooler = Pooler()
        self._read: dict[str, tuple[Request, Future[Matcher]]] = {}  # requests whose grammar is being read

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._read)

    def submit(self, request: Request) -> None:
        """Queue a request (Queued) or refuse it (Rejected). Raises InvalidRequest for a malformed one.

        One with a grammar is queued, or refused, by the first step after its grammar has been read.
        """
        if not request.grammar:
            self._note(self.scheduler.submit(request, self._clock()))
            return
        self.scheduler.validate(request)
        if self._masks is None or request.id in self._read:
            raise InvalidRequest(f"request {request.id!r} is open already, or this engine follows no grammars")
        self._read[request.id] = request, self._masks.read(request)

    def abort(self, request_id: str) -> None:
        """End a request if it is open: at once, or with the step that is executing. Its blocks are free then."""
        if request_id in self._read:
            self._end_unqueued(request_id, ABORT)
        else:
            self._note(self.scheduler.abort(request_id, self._clock()))

    def step(self) -> bool:
        """Run one pass for all sequences; returns whether there is more to do.

        What the runtime raises comes through, and leaves the engine in the middle of a step: start a new one then.
        """
        if self._read:
            self._queue_read()
        if not self.scheduler.has_work:
            return self.has_work
        plan = self.scheduler.schedule(self._clock())
        self._note(plan.events)
        if plan.chunks:
            self._execute(plan)
        return self.has_work

    def _execute(self, plan: StepPlan) -> None:
        if self._speculator is not None:
            plan = self.scheduler.speculate(plan, self._speculator.propose(plan.chunks))
        step = self._batch.build(plan.chunks, plan.copies)
        output = self._runtime.execute(step)
        now, scheduler = self._clock(), self.scheduler
        if output.hidden is not None:
            self._note(self._pooler.take(plan.chunks, output.hidden, now))
        tokens, logprobs = output.tokens.tolist(), read_logprobs(plan.chunks, output)
        if self._masks is not None and step.sampling.masks is not None:
            self._end_failed(plan, self._masks, now)
            kept, places = self._masks.without_void(plan.chunks)
            plan, tokens = replace(plan, chunks=kept), [tokens[place] for place in places]
            logprobs = logprobs and [logprobs[place] for place in places]
        self._note(scheduler.update(plan, tokens, now, logprobs))
        pool = scheduler.pool
        stepped = Stepped(
            at=now,
            duration=output.duration,
            sequences=len(plan.chunks),
            tokens=len(step.tokens),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            used_blocks=pool.blocks - pool.free_blocks,
            total_blocks=pool.blocks,
            offloaded_blocks=sum(target >= pool.blocks for _, target in plan.copies),
            restored_blocks=sum(source >= pool.blocks for source, _ in plan.copies),
        )
        self._note([stepped])

    def _queue_read(self) -> None:
        """Queue the requests whose grammar has been read; where there is nothing else to do, wait a little for one."""
        if not self.scheduler.has_work:
            wait([future for _, future in self._read.values()], _PATIENCE, FIRST_COMPLETED)
        for request, future in list(self._read.values()):
            if future.done():
                self._queue(request, future)

    def _queue(self, request: Request, read: Future[Matcher]) -> None:
        assert self._masks is not None, "who has none reads no grammars"
        try:
            self._masks.follow(request, read.result())
        except InvalidRequest as error:
            self._end_unqueued(request.id, Ending("error", error.message))
            return
        del self._read[request.id]
        self._note(self.scheduler.submit(request, self._clock()))

    def _end_unqueued(self, request_id: str, ending: Ending) -> None:
        request, _ = self._read.pop(request_id)
        tokens, written = len(request.tokens), len(request.answer)
        self._note([Finished(self._clock(), request_id, ending.reason, tokens, 0, written, ending.detail)])

    def _end_failed(self, plan: StepPlan, masks: StepMasks, now: Seconds) -> None:
        """What was drawn for a sequence whose grammar cannot be followed any more is not part of its answer."""
        for chunk in plan.chunks:
            if why := masks.failed(chunk.sequence.request.id):
                self._note(self.scheduler.abort(chunk.sequence.request.id, now, Ending("error", why)))

    def _note(self, events: list[Event]) -> None:
        self.log.extend(events)
        if self._speculator is not None:
            self._speculator.observe(events)
        for event in events:
            if isinstance(event, Finished | Rejected):
                self._pooler.forget(event.request)
                if self._masks is not None:
                    self._masks.forget(event.request)

    def check(self) -> None:
        """Raises InvariantError where the books do not balance. For idle moments, as it takes a millisecond or more."""
        self.scheduler.check()
