"""Pooling: one vector of a prompt, with the same bits however the engine came to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.engine.engine import Engine
from lightwell.engine.pooler import unit_vector
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Pooling, Request
from lightwell.errors import InvalidRequest
from lightwell.events import Embedded, EventLog, Finished, Preempted, Sampled
from lightwell.runtimes.fake import FakeRuntime, slow_reference
from tests.engine.driving import finished, log, make_engine, make_request, run
from tests.runtimes.test_hidden_rows import giving
from tests.steps import Chunk, blocks_for, step_of
from tests.tiny import examples

POOLINGS: tuple[Pooling, ...] = ("last", "mean")


def prompt_of(tokens: int, first: int = 1) -> list[int]:
    return [(first + 13 * n) % 1000 for n in range(tokens)]


def pooled(id: str, tokens: list[int], pooling: Pooling, **more) -> Request:
    return make_request(id, tokens, 0, pooling=pooling, **more)


def by_definition(tokens: list[int], pooling: Pooling) -> bytes:
    """In one step, alone."""
    runtime, blocks = FakeRuntime(), blocks_for(len(tokens))
    runtime.allocate(blocks)
    step = giving(step_of(Chunk(tokens, 0, list(range(blocks)), draw=[])), list(range(len(tokens))))
    rows = runtime.execute(step).hidden
    assert rows is not None
    total = np.zeros(rows.shape[1])
    for row in rows if pooling == "mean" else rows[-1:]:
        total += row
    return unit_vector(total)


def vector(engine: Engine, id: str) -> bytes:
    (event,) = log(engine, Embedded, id)
    return event.values


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 150])
@pytest.mark.parametrize("chunk", [4, 32, 512])
def test_a_vector_comes_before_the_end(pooling: Pooling, length: int, chunk: int):
    engine = make_engine(max_step_tokens=chunk, max_sequences=4)
    request = pooled("r", prompt_of(length), pooling)
    run(engine, [make_request("beside", prompt_of(50, 5), 9), request])
    assert vector(engine, "r") == by_definition(request.tokens, pooling)
    end = finished(engine, "r")
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("stop", length, 0)
    kinds = [type(event) for event in log(engine, Embedded | Finished | Sampled, "r")]
    assert kinds == [Embedded, Finished]


def test_it_has_length_one_and_is_the_mean():
    engine = make_engine()
    run(engine, [pooled("r", prompt_of(40), "mean")])
    values = np.frombuffer(vector(engine, "r"), "<f4")
    assert np.linalg.norm(values) == pytest.approx(1, abs=1e-6)
    assert vector(engine, "r") != by_definition(prompt_of(40), "last")
    assert unit_vector(np.zeros(3)) == bytes(12)


def test_the_prefix_cache_serves_the_last_token_but_not_the_mean():
    engine = make_engine()
    run(engine, [make_request("warm", prompt_of(100), 2)])
    for pooling, cached in (("last", 96), ("mean", 0)):
        run(engine, [pooled(pooling, prompt_of(100), pooling)])
        assert finished(engine, pooling).cached_tokens == cached
        assert vector(engine, pooling) == by_definition(prompt_of(100), pooling)


def test_its_blocks_serve_others():
    engine = make_engine()
    run(engine, [pooled("r", prompt_of(100), "mean")])
    tokens = run(engine, [make_request("after", prompt_of(100), 5)])
    assert tokens["after"] == slow_reference(prompt_of(100), 5)
    assert finished(engine, "after").cached_tokens == 96


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_preemption_changes_no_bit(pooling: Pooling, prefix_cache: bool):
    engine = make_engine(blocks=8, max_step_tokens=16, max_sequences=4, prefix_cache=prefix_cache)
    engine.submit(pooled("r", prompt_of(150), pooling, priority=1))
    for _ in range(6):
        engine.step()
    run(engine, [make_request("urgent", prompt_of(100, 9), 20)])
    assert log(engine, Preempted, "r")
    assert vector(engine, "r") == by_definition(prompt_of(150), pooling)


def test_an_aborted_one_leaves_nothing():
    engine = make_engine(max_step_tokens=16, max_sequences=4)
    engine.submit(pooled("r", prompt_of(150), "mean"))
    engine.step()
    engine.abort("r")
    run(engine, [pooled("r", prompt_of(40), "mean")])  # the same id, with another sum
    assert [event.reason for event in log(engine, Finished, "r")] == ["abort", "stop"]
    assert vector(engine, "r") == by_definition(prompt_of(40), "mean")
    assert not engine._pooler._sums


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 120), st.sampled_from([1, 1, 2]), st.sampled_from([*POOLINGS, ""]), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    ),
    chunk=st.sampled_from([4, 7, 33, 512]),
    blocks=st.integers(5, 20),
    guesses=st.booleans(),
)
@examples(100)
def test_neither_company_nor_chunks_nor_memory_change_a_bit(requests, chunk, blocks, guesses):
    engine = make_engine(
        blocks=blocks, max_step_tokens=chunk, max_sequences=4, speculator=PromptLookup() if guesses else None
    )
    made = [
        make_request(str(i), prompt_of(length, first), 0 if pooling else 9, pooling=pooling, priority=priority)
        for i, (length, first, pooling, priority) in enumerate(requests)
    ]
    tokens = run(engine, made)
    for request in made:
        if request.pooling:
            assert vector(engine, request.id) == by_definition(request.tokens, request.pooling)
        else:
            assert tokens[request.id] == slow_reference(request.tokens, 9)


@pytest.mark.parametrize(
    "more", [{"max_tokens": 1}, {"prompt_logprobs": 0}, {"grammar": "start: /a/"}, {"tokens": []}, {"answer": [1]}]
)
def test_what_no_vector_can_have_is_refused(more: dict):
    request = Request(
        **{"id": "r", "tokens": [1], "sampling": make_request("x", 1).sampling, "max_tokens": 0} | more, pooling="mean"
    )
    with pytest.raises(InvalidRequest, match=r"pooled|answered already"):
        make_engine().scheduler.validate(request)


def test_a_log_lets_go_of_what_was_read():
    log = EventLog()
    log.extend([Embedded(0.0, str(n), b"") for n in range(5)])
    log.forget(3)
    events, end, lost = log.read(3)
    assert ([event.request for event in events], end, lost) == (["3", "4"], 5, 0)
    log.forget(5)
    assert log.read(5) == ([], 5, 0)
