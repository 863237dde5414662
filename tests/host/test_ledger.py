"""The ledger between clients and engines that die at any moment: in the end nobody can tell."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.engine.clocks import VirtualClock
from lightwell.engine.engine import Engine
from lightwell.engine.policies import SchedulerLimits
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler
from lightwell.errors import InvalidRequest
from lightwell.events import (
    Admitted,
    Died,
    EventLog,
    Finished,
    Preempted,
    PromptScored,
    Queued,
    Reused,
    Sampled,
    TokenLogprobs,
)
from lightwell.host.ledger import Ledger
from lightwell.host.messages import Abort
from lightwell.runtimes.fake import FakeModel, FakeRuntime, slow_reference
from lightwell.sampling.params import SamplingParams
from lightwell.xray.metrics import Metrics

MODEL = FakeModel(vocab=100)
POISON = 99
SAMPLINGS = [SamplingParams(temperature=0), SamplingParams(seed=5), SamplingParams(temperature=0.7, seed=2**63)]


class Death(Exception):
    pass


class MortalRuntime(FakeRuntime):
    def execute(self, step, logits=None):
        if POISON in step.tokens:
            raise Death
        return super().execute(step, logits)


class World:
    """Clients, a ledger, and one engine after the other. ``seen`` is what readers see."""

    def __init__(self, model: FakeModel = MODEL) -> None:
        self.model = model
        self.ledger, self.metrics, self.seen = Ledger(), Metrics("tiny"), []
        self.clock, self.deaths, self.convicted, self.vain, self.most_vain = VirtualClock(), 0, [], 0, 0
        self.start()

    def start(self) -> None:
        limits = SchedulerLimits(blocks=30, context_tokens=400, max_sequences=5, max_step_tokens=64)
        runtime = MortalRuntime(self.model)
        runtime.allocate(limits.blocks)
        self.engine, self.cursor = Engine(runtime, Scheduler(limits), EventLog(), self.clock), 0
        self.submit()

    def submit(self) -> None:
        for request in self.ledger.due():
            self.engine.submit(request)

    def publish(self, events) -> None:
        self.seen += events
        self.metrics.read(list(events))

    def add(self, request: Request) -> None:
        self.publish([self.ledger.add(request, self.clock())])
        self.submit()

    def leave(self, id: str) -> None:
        match self.ledger.leave(id, self.clock()):
            case Abort(request):
                self.engine.abort(request)
            case Finished() as finished:
                self.publish([finished])
        self.submit()

    def step(self) -> None:
        self.clock.now += 1
        try:
            self.engine.step()
        except Death:
            self.die()
        else:
            events, self.cursor, _ = self.engine.log.read(self.cursor)
            self.publish(self.ledger.read(events))
            self.submit()

    def die(self) -> None:
        """The engine's last step is lost with it."""
        self.deaths += 1
        aftermath = self.ledger.died(self.clock())
        self.vain = 0 if aftermath.fruitful else self.vain + (not aftermath.convicted)
        self.most_vain = max(self.vain, self.most_vain)
        self.publish([Died(self.clock(), "killed", 0), *aftermath.ended])
        self.convicted += aftermath.convicted
        self.start()

    def of(self, kind: type, id: str) -> list:
        return [event for event in self.seen if isinstance(event, kind) and event.request == id]


def cached_at_first(world: World, id: str) -> int:
    """What the first stay in a batch found cached."""
    tokens, admitted = 0, False
    for event in world.seen:
        if isinstance(event, Died) and admitted:
            break
        if getattr(event, "request", None) != id:
            continue
        if isinstance(event, Preempted):
            break
        if isinstance(event, Admitted | Reused):
            admitted = True
            tokens += event.cached_tokens if isinstance(event, Admitted) else event.tokens
    return tokens


def reference(request: Request) -> tuple[list[int], bool]:
    """The tokens that a client gets, and whether the request kills the engine then."""
    answer = slow_reference(request.tokens, request.max_tokens, request.sampling, MODEL)
    computed = request.tokens + answer[:-1]
    if POISON not in computed:
        return answer, False
    return answer[: max(0, computed.index(POISON) + 1 - len(request.tokens))], True


PROMPTS = st.builds(
    lambda family, length: [(family + i * i) % 98 for i in range(length)], st.integers(0, 2), st.integers(1, 120)
)
ADD = st.tuples(st.just("add"), PROMPTS, st.integers(1, 60), st.sampled_from(SAMPLINGS))
ACTS = st.one_of(ADD, ADD, st.tuples(st.just("step"), st.integers(1, 30)), st.tuples(st.just("kill")),
                 st.tuples(st.just("leave"), st.integers(0, 30)))  # fmt: skip


@settings(deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_nobody_can_tell_how_many_engines_it_took(acts):
    world, requests, left = World(), {}, set()
    for act in acts:
        match act:
            case ("add", prompt, max_tokens, sampling):
                request = Request(f"r{len(requests)}", prompt, sampling, max_tokens)
                requests[request.id] = request
                world.add(request)
            case ("step", count):
                for _ in range(count):
                    world.step()
            case ("leave", number) if f"r{number}" in requests and not world.of(Finished, f"r{number}"):
                left.add(f"r{number}")
                world.leave(f"r{number}")
            case ("kill",) if world.ledger.inside != 1:  # killed alone again and again it would seem to be guilty
                world.die()
    for _ in range(20_000):
        if not world.ledger.inside + world.ledger.held:
            break
        world.step()
    for id, request in requests.items():
        tokens, kills = reference(request)
        got = [event.token for event in world.of(Sampled, id)]
        (finished,) = world.of(Finished, id)
        assert len(world.of(Queued, id)) == 1
        assert len([event for event in world.of(Admitted, id) if not event.resumed]) <= 1
        assert (finished.prompt_tokens, finished.output_tokens) == (len(request.tokens), len(got))
        assert finished.cached_tokens == cached_at_first(world, id)
        if id in left and finished.reason == "abort":
            assert got == tokens[: len(got)]
        else:
            assert got == tokens
            assert finished.reason == ("error" if kills else "length")
            assert (id in world.convicted) == kills
    lines = [line for line in world.metrics.render().decode().splitlines() if line.startswith("lightwell_")]
    shown = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    assert (shown["lightwell_requests_running"], shown["lightwell_requests_waiting"]) == (0, 0)
    assert shown["lightwell_generation_tokens_total"] == sum(isinstance(event, Sampled) for event in world.seen)
    assert shown["lightwell_engine_deaths_total"] == world.deaths


@pytest.mark.parametrize("place", [0, 7, 19])
def test_the_guilty_of_twenty_is_found_within_five_deaths(place):
    world = World(FakeModel(vocab=20_000))  # so many that nobody else comes upon the poison
    for number in range(20):
        prompt = [number, POISON] if number == place else [number, 1, 2]
        world.add(Request(f"r{number}", prompt, SAMPLINGS[0], 30))
    while world.ledger.inside + world.ledger.held:
        world.step()
    assert world.convicted == [f"r{place}"]
    assert world.deaths <= 5
    assert world.most_vain < 5
    assert sum(isinstance(event, Sampled) for event in world.seen) == 19 * 30


def test_suspects_come_one_by_one_and_others_wait():
    ledger = Ledger()
    for name in "abc":
        ledger.add(Request(name, [1], SamplingParams(), 5), 0.0)
    assert [request.id for request in ledger.due()] == ["a", "b", "c"]
    ledger.read([Sampled(1.0, "b", 7)])
    ledger.died(1.0)
    assert [request.id for request in ledger.due()] == ["a", "b", "c"]  # one death may be anybody's
    ledger.read([Sampled(2.0, "b", 8)])
    ledger.died(2.0)
    assert [request.id for request in ledger.due()] == ["a"]
    ledger.add(Request("d", [1], SamplingParams(), 5), 2.5)
    assert ledger.due() == []
    ledger.read([Sampled(3.0, "a", 1)])
    assert [request.id for request in ledger.due()] == ["c"]
    assert ledger.died(3.0).convicted == []  # it was not alone
    assert [request.id for request in ledger.due()] == ["c"]
    assert ledger.died(4.0).convicted == []
    assert [request.id for request in ledger.due()] == ["c"]
    assert ledger.died(5.0).convicted == ["c"]
    assert [(request.id, request.answer) for request in ledger.due()] == [("a", [1]), ("b", [7, 8]), ("d", [])]


def test_one_on_trial_that_leaves_makes_way():
    ledger = Ledger()
    for name in "ab":
        ledger.add(Request(name, [1], SamplingParams(), 5), 0.0)
    for now in (1.0, 2.0):
        ledger.due()
        ledger.died(now)
    assert [request.id for request in ledger.due()] == ["a"]
    assert ledger.leave("a", 3.0) == Abort("a")
    assert [request.id for request in ledger.due()] == ["b"]
    assert [event.reason for event in ledger.died(4.0).ended] == ["abort"]  # nobody else will say how it ended


def test_a_death_in_vain_is_told_from_others():
    ledger = Ledger()
    ledger.add(Request("a", [1], SamplingParams(), 5), 0.0)
    ledger.due()
    assert not ledger.died(1.0).fruitful
    ledger.due()
    ledger.read([Sampled(1.5, "a", 7)])
    assert ledger.died(2.0).fruitful
    ledger.due()
    assert not ledger.died(3.0).fruitful


@pytest.mark.parametrize("done", range(5))
def test_scores_of_the_prompt_are_said_once(done):
    scores = [TokenLogprobs(-float(n), [], []) for n in range(1, 5)]
    ledger = Ledger()
    ledger.add(Request("a", [1, 2, 3, 4, 5], SamplingParams(), 5, prompt_logprobs=0), 0.0)
    ledger.due()
    said = ledger.read([PromptScored(1.0, "a", 1, scores[:done])] if done else [])
    ledger.died(1.0)
    (again,) = ledger.due()
    assert (again.prompt_logprobs is None) == (done == 4)
    if done < 4:
        said += ledger.read([PromptScored(2.0, "a", 1, scores[:2]), PromptScored(2.0, "a", 3, scores[2:])])
    assert [score for event in said for score in event.scores] == scores
    assert Counter(event.start + n for event in said for n, _ in enumerate(event.scores)) == Counter(range(1, 5))


def test_an_open_id_is_not_taken_twice():
    ledger = Ledger()
    ledger.add(Request("a", [1], SamplingParams(), 5), 0.0)
    with pytest.raises(InvalidRequest, match="already open"):
        ledger.add(Request("a", [2], SamplingParams(), 5), 0.0)
    assert ledger.leave("a", 1.0) == Finished(1.0, "a", "abort", 1, 0, 0)
    ledger.add(Request("a", [2], SamplingParams(), 5), 2.0)
    assert ledger.leave("b", 3.0) is None
