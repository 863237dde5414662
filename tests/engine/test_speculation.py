"""Speculation changes the speed and never the answer, whoever guesses: over the fake runtime, whose text tells every
wrong, stale or misplaced KV entry."""

import pytest
from drafters import Drafter, knowing, lying, random_guesses
from driving import GREEDY, draft_model, finished, log, make_engine, make_request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.speculation import Acceptance, worthwhile
from lightwell.events import Preempted, Prefilled, Speculated, Stepped
from lightwell.runtimes.fake import FakeModel, slow_reference
from lightwell.sampling.params import SamplingParams

SEEDED = SamplingParams(temperature=1.0, seed=77)
REPEATING = FakeModel(vocab=3)  # so few tokens that what was said is said again


def prompts() -> list:
    return [
        make_request("short", [5], 40),
        make_request("seeded", [3 * i % 1000 for i in range(70)], 25, SEEDED),
        make_request("one token", [8] * 33, 1),
        make_request("two tokens", [9] * 64, 2, SEEDED),
    ]


# ---- the same bytes, whoever guesses (public reports: vllm#41758, mlx-lm#1423, llama.cpp#25618) ----


@pytest.mark.parametrize("chunk", [6, 64, 512])
@pytest.mark.parametrize(
    "drafter",
    [
        lambda: knowing(5),
        lambda: lying(5),
        lambda: random_guesses(7, 1000),
        PromptLookup,
        draft_model,
        lambda: draft_model(FakeModel(stop_chance=0.5)),
        lambda: draft_model(blocks=3),
    ],
    ids=["knowing", "lying", "random", "prompt lookup", "same draft", "other draft", "draft without room"],
)
def test_whoever_guesses_the_answers_are_what_they_were(drafter, chunk: int):
    engine = make_engine(speculator=drafter(), max_step_tokens=chunk, max_sequences=4)
    tokens = run(engine, prompts())
    for request in prompts():
        assert tokens[request.id] == slow_reference(request.tokens, request.max_tokens, request.sampling)
        end = finished(engine, request.id)
        assert (end.reason, end.output_tokens) == ("length", request.max_tokens)


@settings(deadline=None)
@given(model=st.sampled_from([REPEATING, FakeModel(vocab=50, stop_token=3, stop_chance=0.05)]), seed=st.integers(0, 99))
def test_sampled_answers_end_at_the_same_stop_token(model: FakeModel, seed: int):
    request = make_request("r", [1, 2, 1], 60, SamplingParams(temperature=1, seed=seed), stop_tokens=frozenset({3}))
    plain = run(make_engine(model), [request])
    for drafter in (knowing(8, model), random_guesses(8, model.vocab, model), PromptLookup(), draft_model(model)):
        assert run(make_engine(model, speculator=drafter), [request]) == plain


def test_a_pool_too_small_for_guesses_is_never_overdrawn():
    requests = [make_request(f"r{i}", [i] * 30, 60) for i in range(3)]
    engine = make_engine(speculator=knowing(8), blocks=9)
    assert run(engine, requests) == {r.id: slow_reference(r.tokens, 60) for r in requests}


def test_guesses_fit_into_the_step_and_into_the_answer():
    engine = make_engine(speculator=knowing(50), max_step_tokens=8, max_sequences=4)
    run(engine, [make_request(f"r{i}", [i] * 3, 20) for i in range(3)])
    assert max(step.tokens for step in log(engine, Stepped)) <= 8
    for i in range(3):
        assert finished(engine, f"r{i}").output_tokens == 20


def test_logprobs_come_with_every_accepted_token():
    sampling = SamplingParams(temperature=0, logprobs=1)
    plain, guessed = make_engine(), make_engine(speculator=knowing(4))
    for engine in (plain, guessed):
        run(engine, [make_request("r", [1, 2, 3], 12, sampling)])
    of = [[(e.token, e.logprobs) for e in engine.log.read(0)[0] if hasattr(e, "token")] for engine in (plain, guessed)]
    assert of[0] == of[1]
    assert all(logprobs is not None for _, logprobs in of[1])


# ---- what it saves, and what is said about it ----


def test_right_guesses_save_steps():
    plain, guessed = make_engine(), make_engine(speculator=knowing(4))
    for engine in (plain, guessed):
        run(engine, [make_request("r", [1, 2, 3], 40)])
    assert len(log(plain, Stepped)) == 40
    assert len(log(guessed, Stepped)) == 8  # the prefill's draws five already, if its guesses are right
    assert all(e.proposed == e.accepted for e in log(guessed, Speculated))


def test_what_was_guessed_and_what_was_right_is_told():
    truth = slow_reference([4, 4], 10)
    half_right = Drafter(lambda s: [truth[s.output_tokens], 999, 999] if s.output_tokens < 9 else [])
    engine = make_engine(speculator=half_right)
    assert run(engine, [make_request("r", [4, 4], 10)])["r"] == truth
    events = log(engine, Speculated)
    assert [e.accepted for e in events] == [1] * 5
    assert [e for e in half_right.events if isinstance(e, Speculated)] == events
    assert len(log(engine, Prefilled)) == 1  # checking guesses is decoding


def test_a_draft_that_is_the_target_is_always_right():
    engine = make_engine(speculator=draft_model())
    run(engine, [make_request("r", [1, 2, 3], 60, SEEDED)])
    events = log(engine, Speculated)
    assert events
    assert all(e.accepted == e.proposed for e in events)


def test_prompt_lookup_finds_what_repeats():
    cycle = Drafter(lambda _: [])
    plain = run(make_engine(REPEATING, speculator=cycle), [make_request("r", [0, 1] * 20, 300)])
    engine = make_engine(REPEATING, speculator=PromptLookup())
    assert run(engine, [make_request("r", [0, 1] * 20, 300)]) == plain
    assert sum(e.accepted for e in log(engine, Speculated)) > 0


def test_a_finished_or_aborted_request_leaves_nothing_behind():
    for speculator in (PromptLookup(), draft_model()):
        engine = make_engine(speculator=speculator)
        run(engine, prompts())
        engine.submit(make_request("aborted", [1] * 20, 50))
        for _ in range(5):
            engine.step()
        engine.abort("aborted")
        held = speculator._histories if isinstance(speculator, PromptLookup) else speculator._shadows
        assert not held
    assert speculator._pool.free_blocks == speculator._pool.blocks


# ---- how many guesses ----


def test_more_guesses_where_they_are_right_more_often():
    counts = [worthwhile(rate / 100, 1) for rate in range(101)]
    assert counts == sorted(counts)
    assert (counts[0], counts[100]) == (0, 8)


def test_fewer_guesses_in_a_larger_batch():
    counts = [worthwhile(0.8, sequences) for sequences in range(1, 100)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=50))
def test_a_rate_is_a_probability(trials: list[tuple[int, int]]):
    acceptance = Acceptance()
    for proposed, accepted in trials:
        acceptance.learn(proposed, min(proposed, accepted))
        assert 0 < acceptance.rate < 1


def test_after_wrong_guesses_it_stops_and_tries_again_later():
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.learn(2, 0)
    assert worthwhile(acceptance.rate, 1) == 0
    waited = 0
    while worthwhile(acceptance.rate, 1) == 0:
        acceptance.recover()
        waited += 1
    assert 10 < waited < 200


def test_preempted_sequences_go_on_guessing():
    requests = [make_request(f"r{i}", [i % 3, 1] * 20, 70, GREEDY) for i in range(4)]
    engine = make_engine(REPEATING, speculator=PromptLookup(), blocks=11)
    assert run(engine, requests) == {r.id: slow_reference(r.tokens, 70, GREEDY, REPEATING) for r in requests}
    assert log(engine, Preempted)
