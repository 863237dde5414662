"""What the engine's tests share: short requests, a scheduler driven without a runtime, and an engine over the fake."""

from collections.abc import Iterable
from io import BytesIO
from itertools import count

from lightwell.engine.clocks import VirtualClock
from lightwell.engine.draft_model import DraftModel
from lightwell.engine.engine import Engine
from lightwell.engine.masks import StepMasks
from lightwell.engine.policies import Policies, SchedulerLimits
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, StepPlan
from lightwell.engine.speculation import Speculator
from lightwell.events import Event, EventLog, Finished, Sampled
from lightwell.runtimes.fake import FakeModel, FakeRuntime
from lightwell.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0)
_fresh = count(1)


def make_limits(blocks=1000, context_tokens=100_000, **others) -> SchedulerLimits:
    return SchedulerLimits(blocks=blocks, context_tokens=context_tokens, **others)


def make_request(id: str, prompt: int | list[int], max_tokens: int = 4, sampling=GREEDY, **others) -> Request:
    """``prompt`` as a number makes that many tokens which no other prompt starts with."""
    tokens = [next(_fresh)] * prompt if isinstance(prompt, int) else prompt
    return Request(id, tokens, sampling, max_tokens, **others)


class Driver:
    """A scheduler whose every step takes one second and draws the token 7. Checks the books after each."""

    def __init__(self, limits: SchedulerLimits, policies: Policies | None = None) -> None:
        self.scheduler = Scheduler(limits, policies)
        self.now = 0.0
        self.events: list[Event] = []
        self.plans: list[dict[str, int]] = []  # tokens by request, for each step

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.events += self.scheduler.submit(request, self.now)

    def abort(self, id: str) -> None:
        self.events += self.scheduler.abort(id, self.now)

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        self.events += plan.events
        self.plans.append({chunk.sequence.request.id: chunk.tokens for chunk in plan.chunks})
        return plan

    def update(self, plan: StepPlan) -> None:
        self.now += 1
        if plan.chunks:
            tokens = [7 for chunk in plan.chunks for _ in range(chunk.results)]
            self.events += self.scheduler.update(plan, tokens, self.now)
        self.scheduler.check()

    def step(self, steps: int = 1) -> dict[str, int]:
        """Run steps; returns the last one's tokens by request."""
        for _ in range(steps):
            self.update(self.schedule())
        return self.plans[-1]

    def finish(self, most_steps: int = 10_000) -> None:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps < most_steps, "the scheduler does not come to an end"
        assert self.scheduler.pool.free_blocks == self.scheduler.pool.blocks

    def of(self, kind: type, id: str | None = None) -> list:
        return [e for e in self.events if isinstance(e, kind) and (id is None or e.request == id)]

    def running(self) -> list[str]:
        return [sequence.request.id for sequence in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [sequence.request.id for sequence in self.scheduler.waiting]


def make_engine(
    model: FakeModel | None = None,
    policies: Policies | None = None,
    speculator: Speculator | None = None,
    masks: StepMasks | None = None,
    **limits,
) -> Engine:
    """An engine over the fake runtime; the limits are those of make_limits."""
    made = make_limits(**{"blocks": 200, "context_tokens": 2000} | limits)
    runtime = FakeRuntime(model)
    runtime.allocate(made.blocks)
    runtime.offload_to(BytesIO(), made.offload_slots)
    return Engine(runtime, Scheduler(made, policies), EventLog(), VirtualClock(), speculator, masks)


def draft_model(model: FakeModel | None = None, blocks: int = 200) -> DraftModel:
    runtime = FakeRuntime(model)
    runtime.allocate(blocks)
    return DraftModel(runtime, make_limits(blocks=blocks))


def run(engine: Engine, requests: Iterable[Request], most_steps: int = 5000) -> dict[str, list[int]]:
    """Submit all at once and run until the engine is idle; returns the tokens by request."""
    for request in requests:
        engine.submit(request)
    for _ in range(most_steps):
        more = engine.step()
        engine.check()
        if not more:
            return outputs(engine)
    raise AssertionError("the engine does not come to an end")


def outputs(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for event in log(engine, Sampled):
        tokens.setdefault(event.request, []).append(event.token)
    return tokens


def log(engine: Engine, kind: type, id: str | None = None) -> list:
    events, _, lost = engine.log.read(0)
    assert lost == 0
    return [e for e in events if isinstance(e, kind) and (id is None or e.request == id)]


def finished(engine: Engine, id: str) -> Finished:
    (event,) = log(engine, Finished, id)
    return event
