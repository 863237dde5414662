"""Answers that go round in circles end where this is asked for, wherever the circle began."""

import pytest
from driving import Driver, finished, make_engine, make_limits, make_request, run
from hypothesis import given
from hypothesis import strategies as st

from lightwell.engine.options import PolicyOptions, make_policies
from lightwell.engine.repetition import LONGEST_CYCLE, LOOP_TOKENS, repeats
from lightwell.events import Finished

STOPPING = make_policies(PolicyOptions(stop_repetition=True))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST_CYCLE), st.integers(0, 63))
def test_every_cycle_of_a_permitted_length_is_found(cycle: list[int], offset: int):
    loop = (cycle * (LOOP_TOKENS + 64))[offset : offset + LOOP_TOKENS]
    assert repeats(loop)
    assert not repeats([*loop[:-1], 9])


def test_what_repeats_in_longer_cycles_or_not_at_all_is_let_alone():
    assert not repeats(list(range(LONGEST_CYCLE + 1)) * 10)
    assert repeats(list(range(LONGEST_CYCLE)) * 10)
    assert not repeats(list(range(LOOP_TOKENS)))


def test_a_loop_ends_the_answer_and_says_so():
    driver = Driver(make_limits(), STOPPING)  # which draws 7 and always 7
    driver.submit(make_request("a", [7] * 500, max_tokens=5000))
    driver.finish()
    (end,) = driver.of(Finished)
    assert (end.reason, end.detail, end.output_tokens) == ("length", "repetition", LOOP_TOKENS)


def test_the_prompt_does_not_count():
    driver = Driver(make_limits(), STOPPING)
    driver.submit(make_request("a", [7] * 500, max_tokens=LOOP_TOKENS - 1))
    driver.finish()
    assert driver.of(Finished)[0].detail == ""


def test_without_the_option_nothing_is_cut_off():
    driver = Driver(make_limits())
    driver.submit(make_request("a", 3, max_tokens=2000))
    driver.finish()
    assert driver.of(Finished)[0].output_tokens == 2000


@pytest.mark.parametrize("begun", [0, 10, 250])
def test_an_answer_that_goes_on_ends_at_the_same_token(begun: int):
    driver = Driver(make_limits(), STOPPING)
    driver.submit(make_request("a", 3, max_tokens=2000, answer=[7] * begun))
    driver.finish()
    assert driver.of(Finished)[0].output_tokens == LOOP_TOKENS


def test_answers_that_do_not_loop_are_as_they_were():
    requests = [make_request(f"r{i}", [i + 1] * 9, max_tokens=400) for i in range(4)]
    engine, plain = make_engine(policies=STOPPING), make_engine()
    assert run(engine, requests) == run(plain, requests)
    assert {finished(engine, r.id).detail for r in requests} == {""}
