"""Engine: the batch loop. Asks the scheduler for a plan, lets the runtime compute it, and logs what came of it."""

from lightwell.engine.batch import BatchBuilder, read_logprobs
from lightwell.engine.clocks import Clock
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, StepPlan
from lightwell.engine.speculation import Speculator
from lightwell.events import Event, EventLog, Stepped
from lightwell.runtimes.base import Runtime


class Engine:
    """Drives one runtime, whose KV blocks are allocated already. For one thread; every result is in the log."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        log: EventLog,
        clock: Clock,
        speculator: Speculator | None = None,
    ) -> None:
        self.log = log
        self.scheduler = scheduler
        self._runtime = runtime
        self._clock = clock
        self._speculator = speculator
        self._batch = BatchBuilder(scheduler.limits)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        """Queue a request (Queued) or refuse it (Rejected). Raises InvalidRequest for a malformed one."""
        self._note(self.scheduler.submit(request, self._clock()))

    def abort(self, request_id: str) -> None:
        """End a request if it is open: at once, or with the step that is executing. Its blocks are free then."""
        self._note(self.scheduler.abort(request_id, self._clock()))

    def step(self) -> bool:
        """Run one pass for all sequences; returns whether there is more to do.

        What the runtime raises comes through, and leaves the engine in the middle of a step: start a new one then.
        """
        if not self.has_work:
            return False
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
        logprobs = read_logprobs(plan.chunks, output)
        self._note(scheduler.update(plan, output.tokens.tolist(), now, logprobs))
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

    def _note(self, events: list[Event]) -> None:
        self.log.extend(events)
        if self._speculator is not None:
            self._speculator.observe(events)

    def check(self) -> None:
        """Raises InvariantError where the books do not balance. For idle moments, as it takes a millisecond or more."""
        self.scheduler.check()
