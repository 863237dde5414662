"""Anything may happen in any order: arrivals, aborts and steps, in a pool far too small, with shared prefixes, forks,
answers that go on, guesses, tenants, priorities, penalties, grammars, scored prompts and any choice of policies. After
every step the books balance, and in the end every answer is what it would have been alone.

Public reports of blocks freed twice or never on abort, preemption and disconnect: sglang-jax PR#994, sglang#18701, ATOM
PR#1562."""

from drafters import knowing, lying, random_guesses
from driving import GREEDY, draft_model, finished, log, make_engine, outputs
from fake_grammars import allowed_after, fake_masks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from lightwell.engine.options import PolicyOptions, make_policies
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Request
from lightwell.events import FREE_BLOCKS, Admitted, Finished, Preempted, PromptScored, Rejected
from lightwell.runtimes.fake import FakeModel, slow_reference
from lightwell.sampling.params import SamplingParams

MODEL = FakeModel(vocab=100, stop_token=0, stop_chance=0.02)
BLOCKS, CONTEXT, BYPASSES = 9, 260, 3
SPECULATORS = [
    lambda: None,
    lambda: knowing(4, MODEL),
    lambda: lying(3, 100),
    lambda: random_guesses(6, 100, MODEL),
    PromptLookup,
    lambda: draft_model(MODEL, blocks=6),
]
OPTIONS = st.builds(
    PolicyOptions,
    when_full=st.sampled_from(["preempt", "preempt", "queue", "reject"]),
    batching=st.sampled_from(["continuous", "continuous", "static"]),
    kv_allocation=st.sampled_from(["paged", "paged", "reserved"]),
    target_itl=st.sampled_from([None, 0.05]),
    target_ttft=st.sampled_from([None, 1.0]),
    long_prefill_threshold=st.sampled_from([None, 20]),
    stop_repetition=st.booleans(),
)
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.8, seed=2**63, logprobs=2),
    SamplingParams(temperature=0, repetition_penalty=1.5, frequency_penalty=1.5, logit_bias={3: 0.9, 7: -100}),
    SamplingParams(temperature=1.0, seed=6, presence_penalty=1.5),
]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        max_sequences=st.integers(1, 6),
        max_step_tokens=st.sampled_from([6, 17, 64, 512]),
        watermark=st.sampled_from([0.0, 0.2]),
        prefix_cache=st.booleans(),
        offload_slots=st.sampled_from([0, 1, 6, 40]),
        speculator=st.sampled_from(SPECULATORS),
        options=OPTIONS,
    )
    def start(self, speculator, options, **limits):
        self.engine = make_engine(
            MODEL,
            speculator=speculator(),
            policies=make_policies(options),
            masks=fake_masks(),
            blocks=BLOCKS,
            context_tokens=CONTEXT,
            max_bypasses=BYPASSES,
            **limits,
        )
        self.options = options
        self.requests: dict[str, Request] = {}

    @rule(
        family=st.integers(0, 2),
        length=st.integers(1, 150),
        max_tokens=st.integers(1, 90),
        sampling=st.sampled_from(SAMPLINGS),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        salt=st.sampled_from(["", "tenant"]),
        min_tokens=st.sampled_from([0, 0, 30]),
        grammar=st.sampled_from(["", "", "a rule"]),
        prompt_logprobs=st.sampled_from([None, None, 1]),
    )
    def submit(self, family, length, max_tokens, sampling, priority, salt, min_tokens, **more):
        id = f"r{len(self.requests)}"
        tokens = [(family + i * i) % 100 for i in range(length)]  # prompts of a family are prefixes of each other
        least = min(min_tokens, max_tokens)
        request = Request(id, tokens, sampling, max_tokens, frozenset({0}), priority, salt, min_tokens=least, **more)
        self.requests[id] = request
        self.engine.submit(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), sampling=st.sampled_from(SAMPLINGS), max_tokens=st.integers(1, 40))
    def fork(self, data, sampling, max_tokens):
        """Another choice for a prompt, whose first one may be waiting, running or over."""
        first = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        id = f"r{len(self.requests)}"
        least = min(first.min_tokens, max_tokens)
        choice = structs.replace(first, id=id, sampling=sampling, max_tokens=max_tokens, min_tokens=least, answer=[])
        self.requests[id] = structs.replace(choice, fork_of=first.id, prompt_logprobs=None)
        self.engine.submit(self.requests[id])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def go_on(self, data):
        """A request that another engine had begun to answer."""
        first = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        answer = full_answer(first)[: data.draw(st.integers(0, first.max_tokens - 1))]
        if 0 not in answer:
            id = f"r{len(self.requests)}"
            self.requests[id] = structs.replace(first, id=id, answer=answer, fork_of="")
            self.engine.submit(self.requests[id])

    @rule(family=st.integers(0, 2), excess=st.integers(1, 50))
    def submit_impossible(self, family, excess):
        id = f"r{len(self.requests)}"
        # Others may be forked from it, and end where all answers here do.
        self.requests[id] = Request(id, [family] * (CONTEXT - 10), GREEDY, 10 + excess, frozenset({0}))
        self.engine.submit(self.requests[id])
        assert log(self.engine, Rejected, id)

    @rule(steps=st.integers(1, 30))
    def step(self, steps):
        for _ in range(steps):
            self.engine.step()
            self.engine.scheduler.check()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @invariant()
    def books_balance(self):
        if hasattr(self, "engine"):
            self.engine.scheduler.check()
            assert all(s.bypassed <= BYPASSES for s in self.engine.scheduler.waiting)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        steps = 0
        while self.engine.step():
            self.engine.scheduler.check()
            steps += 1
            assert steps < 5000, "somebody starves"
        answers = outputs(self.engine)
        for id, request in self.requests.items():
            if not log(self.engine, Rejected, id):
                self.check_answer(request, answers.get(id, []))
        assert self.engine.scheduler.pool.free_blocks == BLOCKS
        full = [e for e in log(self.engine, Rejected) if e.limit == FREE_BLOCKS]
        assert self.options.when_full == "reject" or not full
        if self.options.when_full != "preempt":
            assert not log(self.engine, Preempted)

    def check_answer(self, request: Request, answer: list[int]) -> None:
        answer, full = request.answer + answer, full_answer(request)
        end = finished(self.engine, request.id)
        if end.reason == "abort":
            assert answer == full[: len(answer)]
        else:
            assert answer == full
            assert end.reason == ("stop" if full[-1] == 0 else "length")
            scored = [e.start + i for e in log(self.engine, PromptScored, request.id) for i in range(len(e.scores))]
            assert scored == ([] if request.prompt_logprobs is None else [*range(1, len(request.tokens))])
        assert end.output_tokens == len(answer)
        assert end.cached_tokens < len(request.tokens + request.answer)
        preempted, admitted = log(self.engine, Preempted, request.id), log(self.engine, Admitted, request.id)
        assert len(admitted) - len(preempted) in (0, 1)
        assert len(log(self.engine, Finished, request.id)) == 1


def full_answer(request: Request) -> list[int]:
    full = slow_reference(
        request.tokens,
        request.max_tokens,
        request.sampling,
        MODEL,
        request.min_tokens,
        request.stop_tokens,
        allowed_after if request.grammar else lambda answer: None,
    )
    return full[: full.index(0) + 1] if 0 in full else full


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
