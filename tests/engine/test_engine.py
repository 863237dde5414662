"""The engine over the fake runtime, whose next token is a hash of all that the sequence sees through its block table:
a wrong, stale or swapped block, a missing token or a wrong position changes the text. So equal text means equal KV."""

import numpy as np
import pytest
from drafters import knowing, random_guesses
from driving import GREEDY, finished, log, make_engine, make_limits, make_request, outputs, run
from msgspec import structs

from lightwell.engine.batch import BatchBuilder
from lightwell.engine.clocks import VirtualClock, wall_clock
from lightwell.engine.engine import Engine
from lightwell.engine.policies import Policies
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler
from lightwell.errors import InvalidRequest, InvariantError
from lightwell.events import (
    Admitted,
    Finished,
    Preempted,
    Prefilled,
    PromptScored,
    Rejected,
    Reused,
    Sampled,
    Stepped,
)
from lightwell.kv.prefix_index import LEAST_PART
from lightwell.runtimes.base import StepInput, StepOutput
from lightwell.runtimes.fake import FakeModel, FakeRuntime, slow_reference
from lightwell.sampling.params import SamplingParams

SEEDED = SamplingParams(temperature=1.0, seed=1234)


def prompt_of(length: int, first: int = 1) -> list[int]:
    return [(first + 17 * i) % 1000 for i in range(length)]


def expected(request: Request) -> list[int]:
    return slow_reference(request.tokens, request.max_tokens, request.sampling)


def strangers(count: int) -> list[Request]:
    """A mix to run beside: greedy, seeded and unseeded ones (an unseeded one has a seed that the gateway drew)."""
    kinds = [GREEDY, SamplingParams(temperature=0.7, seed=99), SamplingParams(temperature=1.3, seed=2**64 - 1)]
    return [
        make_request(f"stranger{i}", prompt_of(3 + 37 * i % 150, i), 5 + 7 * i % 40, kinds[i % 3]) for i in range(count)
    ]


# ---- the same tokens, always ----


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_tokens_do_not_depend_on_the_batch(batch: int, sampling: SamplingParams):
    # public reports: vllm#51226 (a seeded request beside unseeded ones), vllm#5898 (batch size changes greedy output),
    # openvino.genai#4367 (continuous batching against the simple loop)
    request = make_request("r", prompt_of(100), 30, sampling)
    tokens = run(make_engine(), [*strangers(batch // 2), request, *strangers(batch)[batch // 2 : batch - 1]])
    assert tokens["r"] == expected(request)
    for stranger in strangers(batch - 1):
        assert tokens[stranger.id] == expected(stranger)


@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 10_000])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
def test_tokens_do_not_depend_on_the_chunks(chunk: int, prefix_cache: bool):
    # public report: vllm#23138
    def in_chunks(budget, moment):
        return [(s, min(chunk, s.remaining)) for s in moment.prefilling]

    requests = [make_request(f"r{n}", prompt_of(n), 8, s) for n in (1, 31, 32, 33, 64, 100) for s in (GREEDY,)]
    engine = make_engine(policies=Policies(split=in_chunks), prefix_cache=prefix_cache)
    assert run(engine, requests) == {r.id: expected(r) for r in requests}


def test_the_same_seed_gives_the_same_tokens_in_another_process():
    # public report: vllm#21310; the hash keys of the two pools differ, as those of two processes do
    request = make_request("r", prompt_of(70), 20, SEEDED)
    first, second = run(make_engine(), [request])["r"], run(make_engine(), [*strangers(3), request])["r"]
    assert first == second == expected(request)
    other = make_request("r", request.tokens, 20, SamplingParams(temperature=1.0, seed=1235))
    assert run(make_engine(), [other])["r"] != first


@pytest.mark.parametrize("length", range(1, 3 * 32 + 2))
def test_a_cached_prompt_of_any_length_gives_the_cold_answer(length: int):
    # public reports: sglang PR#9989, model_server#4376: lengths that are a multiple of the block, or just not
    request = make_request("cold", prompt_of(length), 3)
    warm = make_request("warm", prompt_of(length), 3)
    cached, plain = make_engine(), make_engine(prefix_cache=False)
    for engine in (cached, plain):
        assert run(engine, [request])["cold"] == run(engine, [warm])["warm"] == expected(request)
    full, part = divmod(length - 1, 32)
    assert finished(cached, "warm").cached_tokens == 32 * full + (part if part >= LEAST_PART else 0)
    assert finished(plain, "warm").cached_tokens == 0


def test_preemption_changes_no_token():
    requests = [make_request(f"r{i}", prompt_of(60 + i, i), 90, (GREEDY, SEEDED)[i % 2]) for i in range(8)]
    engine = make_engine(blocks=16, watermark=0.0)
    assert run(engine, requests) == {r.id: expected(r) for r in requests}
    assert log(engine, Preempted)


def test_the_answer_ends_with_the_stop_token():
    model = FakeModel(stop_token=0, stop_chance=0.1)
    requests = [make_request(f"r{i}", prompt_of(20, i), 60, stop_tokens=frozenset({0})) for i in range(10)]
    engine = make_engine(model)
    tokens = run(engine, requests)
    for request in requests:
        full = slow_reference(request.tokens, 60, GREEDY, model)
        end = full.index(0) + 1 if 0 in full else 60
        assert tokens[request.id] == full[:end]
        assert finished(engine, request.id).reason == ("stop" if 0 in full else "length")


# ---- prefix cache ----


def test_the_next_turn_of_a_conversation_finds_all_full_blocks_of_the_last():
    # public report: vllm#31920, no hits in conversations
    engine = make_engine()
    history = prompt_of(50)
    for turn in range(4):
        request = make_request(f"turn{turn}", history, 45)
        answer = run(engine, [request])[request.id]
        assert answer == expected(request)
        computed = len(history) + len(answer) - 1  # the last token of an answer has not been through the model
        history = [*history, *answer, 5, 6, 7]
        follow_up = make_request(f"look{turn}", history, 1)
        run(engine, [follow_up])
        full, part = divmod(computed, 32)
        assert finished(engine, follow_up.id).cached_tokens == 32 * full + (part if part >= LEAST_PART else 0)


@pytest.mark.parametrize("shared", [3, 4, 17, 31, 35, 36, 63])
def test_a_prompt_that_leaves_another_in_the_middle_of_a_block_starts_there(shared: int):
    engine = make_engine()
    requests = [make_request(f"r{i}", prompt_of(shared) + prompt_of(40, 501 + i), 4) for i in range(3)]
    answers = [run(engine, [request])[request.id] for request in requests]
    assert answers == [expected(request) for request in requests]
    part = shared % 32 if shared % 32 >= LEAST_PART else 0
    assert [finished(engine, r.id).cached_tokens for r in requests] == [0] + [shared // 32 * 32 + part] * 2


def test_a_partly_shared_block_is_reported_as_reused():
    engine = make_engine()
    run(engine, [make_request("a", prompt_of(50), 4)])
    run(engine, [make_request("b", [*prompt_of(50), 7], 4)])
    (reused,) = log(engine, Reused, "b")
    assert (reused.start, reused.tokens) == (32, 18)
    assert [(e.start, e.tokens) for e in log(engine, Prefilled, "b")] == [(50, 1)]


def test_a_sequence_that_cannot_compute_yet_waits_for_the_whole_block():
    """They all could copy 20 tokens of an older block, but then none could share what the first one computes."""
    engine = make_engine(max_step_tokens=64, blocks=400)
    run(engine, [make_request("old", [*prompt_of(20), *prompt_of(30, 700)], 1)])
    requests = [make_request(f"r{i}", [*prompt_of(500), 900 + i], 1) for i in range(8)]
    assert run(engine, requests) | {"old": []} == {r.id: expected(r) for r in requests} | {"old": []}
    assert sum(e.tokens for e in log(engine, Prefilled)) < 50 + 500 + 8 * 32


def test_a_chunk_that_begins_with_a_part_still_ends_with_a_block():
    engine = make_engine(max_step_tokens=64)
    run(engine, [make_request("old", [*prompt_of(20), *prompt_of(30, 700)], 1)])
    run(engine, [make_request("long", prompt_of(150), 1)])
    assert [(e.start, e.tokens) for e in log(engine, Prefilled, "long")] == [(20, 44), (64, 64), (128, 22)]


# ---- offload ----


def offloading(blocks: int = 8, slots: int = 40, **limits) -> Engine:
    return make_engine(blocks=blocks, offload_slots=slots, watermark=0.0, **limits)


def moved(engine: Engine) -> tuple[int, int]:
    """Blocks that went to the store and came back."""
    steps = log(engine, Stepped)
    return sum(e.offloaded_blocks for e in steps), sum(e.restored_blocks for e in steps)


def test_a_prompt_that_left_the_cache_comes_back_from_the_store():
    engine = offloading()
    requests = [make_request(f"r{i}", prompt_of(200, 1 + 300 * (i % 3)), 4, SEEDED) for i in range(6)]
    for request in requests:
        assert run(engine, [request])[request.id] == expected(request)
    assert [finished(engine, r.id).cached_tokens for r in requests] == [0, 0, 0, 199, 199, 199]
    assert moved(engine)[0] <= 3 * 7, "nothing is written twice"
    assert moved(engine)[1] == 3 * 7


def test_the_store_is_bounded_and_what_it_lost_is_computed_again():
    engine = offloading(slots=5)
    requests = [make_request(f"r{i}", prompt_of(200, 1 + 300 * (i % 3)), 4) for i in range(6)]
    for request in requests:
        assert run(engine, [request])[request.id] == expected(request)
        assert engine.scheduler.pool.offloaded_blocks <= 5
    assert finished(engine, "r3").cached_tokens < 199


def test_a_preempted_sequence_comes_back_from_the_store():
    requests = [make_request(f"r{i}", prompt_of(60 + i, i), 90, (GREEDY, SEEDED)[i % 2]) for i in range(8)]
    engine = offloading(blocks=16, slots=100)
    assert run(engine, requests) == {r.id: expected(r) for r in requests}
    assert log(engine, Preempted)
    assert moved(engine)[1] > 0


def test_blocks_for_guesses_push_others_out_in_time():
    """What the guesses of a step overwrite is offloaded before that step computes."""
    engine = offloading(blocks=8, speculator=knowing(31))
    first = make_request("first", prompt_of(230), 4)
    run(engine, [first])
    for i in range(6):
        run(engine, [make_request(f"r{i}", prompt_of(30 + i, 500 + i), 40)])
    again = make_request("again", first.tokens, 4)
    assert run(engine, [again])["again"] == expected(again)
    assert finished(engine, "again").cached_tokens == 229


def test_salts_are_kept_apart_in_the_store_too():
    engine = offloading()
    for i, salt in enumerate(["mine", "other", "yours", "mine"]):
        run(engine, [make_request(f"r{i}", prompt_of(200, 500 if i == 1 else 1), 4, salt=salt)])
    assert [finished(engine, f"r{i}").cached_tokens for i in range(4)] == [0, 0, 0, 199]


def test_copies_wait_for_the_next_step_that_computes():
    """A plan without chunks is not executed; what it listed must not be lost."""
    budget = [0]

    def none_at_first(moment):
        return budget[0]

    engine = offloading(policies=Policies(budget=none_at_first))
    budget[0] = 512
    for i in range(2):
        run(engine, [make_request(f"r{i}", prompt_of(200, 1 + 300 * i), 4)])
    budget[0] = 0
    request = make_request("again", prompt_of(200), 4)
    engine.submit(request)
    engine.step()
    assert moved(engine)[1] == 0
    budget[0] = 512
    assert run(engine, [])["again"] == expected(request)
    assert moved(engine)[1] > 0


def test_another_prompt_in_between_does_not_lose_the_cache():
    # public reports: llama.cpp#3738, #10993
    engine = make_engine(blocks=20)
    a, b = prompt_of(100), prompt_of(100, first=500)
    for number, prompt in enumerate([a, b, a, b]):
        run(engine, [make_request(f"r{number}", prompt, 4)])
    assert [finished(engine, f"r{i}").cached_tokens for i in range(4)] == [0, 0, 96, 96]


def test_different_salts_never_share_and_give_the_same_answers():
    # public report: vllm PR#17045 (CVE-2025-46570)
    engine = make_engine()
    requests = [make_request(f"r{i}", prompt_of(100), 5, salt=salt) for i, salt in enumerate(["", "x", "y", "x"])]
    answers = [run(engine, [request])[request.id] for request in requests]
    assert answers == [expected(requests[0])] * 4
    assert [finished(engine, r.id).cached_tokens for r in requests] == [0, 0, 0, 96]


# ---- leaving early ----


def used_blocks(engine: Engine) -> int:
    return engine.scheduler.pool.blocks - engine.scheduler.pool.free_blocks


@pytest.mark.parametrize("steps", [0, 1, 2, 9])
def test_after_an_abort_the_blocks_are_free_within_two_steps(steps: int):
    # public reports: vllm#9428, vllm#24584: the client has gone, and generation goes on
    engine = make_engine(max_step_tokens=64)
    engine.submit(make_request("stays", prompt_of(40), 500))
    engine.submit(make_request("goes", prompt_of(200, first=3), 500))
    for _ in range(steps):
        engine.step()
    engine.abort("goes")
    for _ in range(2):
        engine.step()
    (stays,) = engine.scheduler.running
    assert used_blocks(engine) == len(stays.table.blocks)
    assert finished(engine, "goes").reason == "abort"
    assert not [e for e in log(engine, Sampled, "goes") if e.at > finished(engine, "goes").at]


class Interrupting:
    """A fake runtime in whose nth step something happens, as when a message arrives while a step executes."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self.during: dict[int, object] = {}
        self._steps = 0

    def execute(self, step: StepInput, logits=None) -> StepOutput:
        self._steps += 1
        self.during.get(self._steps, lambda: None)()
        return self._runtime.execute(step)


@pytest.mark.parametrize("at_step", [1, 2, 5])
def test_abort_in_the_step_now_executing(at_step: int):
    engine = make_engine()
    engine._runtime = runtime = Interrupting(engine._runtime)
    runtime.during[at_step] = lambda: engine.abort("goes")
    requests = [make_request("stays", prompt_of(40), 10), make_request("goes", prompt_of(50), 500)]
    tokens = run(engine, requests)
    assert tokens["stays"] == expected(requests[0])
    assert finished(engine, "goes").output_tokens == len(tokens.get("goes", [])) == at_step - 1
    assert used_blocks(engine) == 0


def test_a_request_that_arrives_in_the_step_now_executing():
    engine = make_engine()
    engine._runtime = runtime = Interrupting(engine._runtime)
    late = make_request("late", prompt_of(40), 10)
    runtime.during[3] = lambda: engine.submit(late)
    assert run(engine, [make_request("a", prompt_of(30), 6)])["late"] == expected(late)


@pytest.mark.parametrize("chunk", [50, 64])
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_the_conversation_of_an_aborted_request_retried_gives_the_cold_answer(steps: int, chunk: int):
    # public reports: sglang#36475, sglang#37833: the next turn after a disconnect was wrong. A chunk of 50 leaves a
    # block half written, which must not be found by the next one.
    engine = make_engine(max_step_tokens=chunk, max_sequences=8)
    engine.submit(make_request("first", prompt_of(150), 50))
    for _ in range(steps):
        engine.step()
    engine.abort("first")
    again = make_request("again", prompt_of(150), 50)
    assert run(engine, [*strangers(3), again])["again"] == expected(again)


# ---- the loop ----


def test_a_request_after_a_refused_one_completes():
    # public report: vllm#765
    engine = make_engine(context_tokens=100)
    good = make_request("good", prompt_of(50), 10)
    tokens = run(engine, [make_request("bad", prompt_of(200), 10), good])
    assert tokens == {"good": expected(good)}
    assert [e.request for e in log(engine, Rejected)] == ["bad"]


def test_every_step_is_logged_with_what_it_held():
    engine = make_engine(max_step_tokens=64)
    run(engine, [make_request("a", prompt_of(100), 2), make_request("b", prompt_of(3), 1)])
    steps = log(engine, Stepped)
    assert [(s.sequences, s.tokens, s.running, s.waiting) for s in steps] == [
        (2, 64, 1, 0),
        (1, 39, 1, 0),
        (1, 1, 0, 0),
    ]
    assert [s.used_blocks for s in steps] == [2, 4, 0]
    assert all(s.total_blocks == 200 and s.duration >= 0 for s in steps)


def test_an_idle_engine_does_nothing():
    engine = make_engine()
    assert not engine.has_work
    assert engine.step() is False
    assert engine.log.read(0) == ([], 0, 0)


def test_logprobs_come_back_to_those_who_asked():
    asking = make_request("asks", prompt_of(10), 3, SamplingParams(temperature=0, logprobs=2))
    chosen_only = make_request("chosen", prompt_of(11), 3, SamplingParams(temperature=0, logprobs=0))
    engine = make_engine()
    run(engine, [asking, make_request("silent", prompt_of(12), 3), chosen_only])
    assert [e.logprobs for e in log(engine, Sampled, "silent")] == [None] * 3
    for event in log(engine, Sampled, "asks"):
        assert event.logprobs.top_ids[0] == event.token
        assert event.logprobs.chosen == event.logprobs.top[0]
        assert len(event.logprobs.top) == 2
    assert [e.logprobs.top_ids for e in log(engine, Sampled, "chosen")] == [[]] * 3


def test_what_the_runtime_raises_comes_through():
    engine = make_engine()
    engine._runtime = runtime = Interrupting(engine._runtime)

    def fail() -> None:
        raise MemoryError("no more")

    runtime.during[2] = fail
    engine.submit(make_request("a", prompt_of(5), 4))
    engine.step()
    with pytest.raises(MemoryError, match="no more"):
        engine.step()


def test_a_leak_is_noticed():
    engine = make_engine()
    engine.submit(make_request("a", prompt_of(5), 2))
    engine.step()
    pool = engine.scheduler.pool
    pool.extend(pool.new_table(), 32)
    engine.step()
    with pytest.raises(InvariantError, match="0 tables list it"):
        engine.check()


def test_events_carry_the_time_of_the_engines_clock():
    clock = VirtualClock(10.0)
    engine = make_engine()
    engine._clock = clock
    engine.submit(make_request("a", prompt_of(5), 1))
    clock.now = 12.5
    engine.step()
    (admitted,) = log(engine, Admitted)
    assert (admitted.at, admitted.waited) == (12.5, 2.5)
    assert wall_clock() <= wall_clock()


def test_five_hundred_at_once_a_third_of_them_aborted():
    sampling = (GREEDY, SEEDED)
    requests = [make_request(f"r{i}", prompt_of(1 + i * 37 % 130, i), 1 + i % 9, sampling[i % 2]) for i in range(500)]
    engine = make_engine(max_sequences=32)
    for request in requests:
        engine.submit(request)
    step = 0
    while engine.step():
        for victim in range(step, 500, 97):
            engine.abort(f"r{victim * 3}")
        step += 1
    tokens = outputs(engine)
    whole = [r for r in requests if finished(engine, r.id).reason == "length"]
    assert len(whole) > 333
    assert all(tokens[r.id] == expected(r) for r in whole)
    assert len(log(engine, Finished)) == 500
    assert used_blocks(engine) == 0


# ---- the arrays ----


def test_the_arrays_of_a_step_with_a_decoding_and_a_prefilling_sequence():
    scheduler = Scheduler(make_limits(blocks=10, max_sequences=4, max_step_tokens=36))
    builder = BatchBuilder(scheduler.limits)
    scheduler.submit(make_request("a", [1, 2, 3], 9, SamplingParams(0.5, 4, 0.9, 0.1, 2**64 - 1, 3)), 0.0)
    plan = scheduler.schedule(0.0)
    builder.build(plan.chunks)
    scheduler.update(plan, [8], 0.0)
    scheduler.submit(make_request("b", list(range(100, 140)), 9), 0.0)
    step = builder.build(scheduler.schedule(0.0).chunks)
    assert step.tokens.tolist() == [8, *range(100, 135)]
    assert step.positions.tolist() == [3, *range(35)]
    assert step.starts.tolist() == [0, 1, 36]
    assert step.block_tables.tolist() == [[0, -1], [1, 2]]
    assert step.logit_rows.tolist() == [0]
    rows = step.sampling
    assert [rows.temperature[0], rows.top_k[0], rows.top_p[0]] == [0.5, 4, np.float32(0.9)]
    assert [rows.min_p[0], int(rows.seeds[0]), rows.positions[0], rows.logprobs[0]] == [
        np.float32(0.1),
        2**64 - 1,
        4,
        3,
    ]
    dtypes = [step.tokens, step.positions, step.starts, step.block_tables, step.logit_rows, rows.positions, rows.top_k]
    assert {array.dtype for array in dtypes} == {np.dtype(np.int32)}
    assert step.block_tables.flags.c_contiguous


def test_a_row_that_changes_hands_shows_nothing_of_its_former_owner():
    scheduler = Scheduler(make_limits(blocks=10, max_sequences=1))
    builder = BatchBuilder(scheduler.limits)
    scheduler.submit(make_request("a", 100, 1), 0.0)
    plan = scheduler.schedule(0.0)
    assert builder.build(plan.chunks).block_tables.shape == (1, 4)
    scheduler.update(plan, [1], 0.0)
    scheduler.submit(make_request("b", 3, 1), 0.0)
    step = builder.build(scheduler.schedule(0.0).chunks)
    assert step.block_tables.shape == (1, 1)
    assert builder._tables[0, 1:].tolist() == [-1] * 9
    assert step.sampling.logprobs.tolist() == [-1]


# ---- an answer that another engine had begun ----


@pytest.mark.parametrize("written", [0, 1, 5, 19])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_goes_on_where_it_was_left(written: int, sampling: SamplingParams):
    request = make_request("r", prompt_of(40), 20, sampling)
    answer = expected(request)
    engine = make_engine()
    resumed = make_request("r", request.tokens, 20, sampling, answer=answer[:written])
    assert run(engine, [resumed])["r"] == answer[written:]
    end = finished(engine, "r")
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", 40, 20)


def test_an_answer_that_is_whole_already_is_refused():
    with pytest.raises(InvalidRequest, match="answered already"):
        make_engine().submit(make_request("r", [1], 2, answer=[5, 6]))


# ---- several choices for one prompt ----


@pytest.mark.parametrize("length", [1, 20, 32, 33, 70])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_share_the_prompt_that_the_first_computes(length: int, prefix_cache: bool):
    prompt, samplings = prompt_of(length), [SamplingParams(temperature=1.0, seed=i) for i in range(4)]
    first, *others = [make_request(f"r{i}", prompt, 10, s, fork_of="r0" if i else "") for i, s in enumerate(samplings)]
    engine = make_engine(max_step_tokens=16, max_sequences=8, prefix_cache=prefix_cache)
    assert run(engine, [first, *others]) == {r.id: expected(r) for r in (first, *others)}
    for other in others:
        assert finished(engine, other.id).cached_tokens == length - 1
    prefilled = [(event.request, event.tokens) for event in log(engine, Prefilled)]
    assert sum(tokens for _, tokens in prefilled) == length + len(others)  # each draws its own first token


def test_choices_take_few_blocks_of_their_own():
    requests = [make_request(f"r{i}", prompt_of(100), 10, SEEDED, fork_of="r0" if i else "") for i in range(8)]
    engine = make_engine(blocks=16, prefix_cache=False, watermark=0.0)
    assert run(engine, requests) == {r.id: expected(r) for r in requests}
    assert max(step.used_blocks for step in log(engine, Stepped)) == 3 + 8
    assert not log(engine, Preempted)


def test_a_choice_that_has_another_prompt_shares_nothing():
    first, other = make_request("first", prompt_of(60), 30), make_request("other", prompt_of(60, 2), 9, fork_of="first")
    assert run(make_engine(), [first, other]) == {"first": expected(first), "other": expected(other)}


def test_a_choice_whose_first_one_is_gone_runs_alone():
    engine = make_engine(max_step_tokens=8, max_sequences=8)
    engine.submit(make_request("first", prompt_of(100), 10))
    engine.submit(make_request("second", prompt_of(100), 10, SEEDED, fork_of="first"))
    engine.step()
    assert not log(engine, Admitted, "second")
    engine.abort("first")
    assert run(engine, [])["second"] == expected(make_request("second", prompt_of(100), 10, SEEDED))


# ---- penalties, biases, forbidden stop tokens ----

EDITED = [
    SamplingParams(temperature=0, repetition_penalty=1.7),
    SamplingParams(temperature=1, seed=3, presence_penalty=1.5, frequency_penalty=0.7),
    SamplingParams(temperature=0, logit_bias={7: 100.0, 8: 99.5}, frequency_penalty=1.0),
]
FEW = FakeModel(vocab=20, stop_token=0, stop_chance=0.2)


def edited_requests() -> list[Request]:
    stops = frozenset({0})
    return [
        make_request(f"r{i}", [5, 6, 7] * (3 + 5 * i), 40, sampling, min_tokens=m, stop_tokens=stops)
        for i, (sampling, m) in enumerate([*((s, 0) for s in EDITED), (GREEDY, 12), (EDITED[0], 39), (GREEDY, 0)])
    ]


def expected_edited(request: Request) -> list[int]:
    stops = request.stop_tokens
    full = slow_reference(request.tokens, request.max_tokens, request.sampling, FEW, request.min_tokens, stops)
    return full[: full.index(0) + 1] if 0 in full else full


@pytest.mark.parametrize(
    "drafter", [lambda: None, lambda: knowing(4, FEW), lambda: random_guesses(5, 20, FEW), PromptLookup]
)
@pytest.mark.parametrize("blocks", [200, 6])
def test_edits_follow_the_answer_whatever_happens_around_it(drafter, blocks: int):
    requests = edited_requests()
    engine = make_engine(FEW, speculator=drafter(), blocks=blocks)
    assert run(engine, requests) == {r.id: expected_edited(r) for r in requests}
    assert bool(log(engine, Preempted)) == (blocks == 6)


def test_an_edited_answer_goes_on_where_it_was_left():
    for request in edited_requests():
        whole = expected_edited(request)
        for written in (1, len(whole) // 2, len(whole) - 1):
            resumed = structs.replace(request, answer=whole[:written])
            assert run(make_engine(FEW), [resumed]).get(request.id, []) == whole[written:]


# ---- the prompt's own log-probabilities ----


def scored(engine: Engine, id: str) -> list[tuple[int, int]]:
    """Positions, and how many candidates came with each."""
    events = log(engine, PromptScored, id)
    return [(event.start + i, len(score.top)) for event in events for i, score in enumerate(event.scores)]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 80])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("chunk", [8, 512])
def test_a_prompt_is_scored_once_and_whole(length: int, max_tokens: int, chunk: int):
    engine = make_engine(max_step_tokens=chunk, max_sequences=4)
    warm = make_request("warm", prompt_of(length), 2)
    request = make_request("r", prompt_of(length), max_tokens, prompt_logprobs=2)
    run(engine, [warm])
    tokens = run(engine, [request, make_request("beside", prompt_of(50, 5), 9, SEEDED)])
    assert scored(engine, "r") == [(position, 2) for position in range(1, length)]
    assert tokens.get("r", []) == slow_reference(request.tokens, max_tokens)
    assert (finished(engine, "r").reason, finished(engine, "r").cached_tokens) == ("length", 0)


def test_a_prompt_is_scored_once_even_if_it_is_preempted():
    engine = make_engine(blocks=8, max_step_tokens=16, max_sequences=4, prefix_cache=False)
    engine.submit(make_request("r", prompt_of(150), 60, prompt_logprobs=0, priority=1))
    for _ in range(6):
        engine.step()
    run(engine, [make_request("urgent", prompt_of(100, 9), 20)])
    assert log(engine, Preempted, "r")
    assert scored(engine, "r") == [(position, 0) for position in range(1, 150)]


def test_nothing_to_compute_is_refused():
    for request in (make_request("r", [1], 0), make_request("r", [], 1), make_request("r", [], 0, prompt_logprobs=1)):
        with pytest.raises(InvalidRequest, match="at least one prompt token"):
            make_engine().submit(request)
