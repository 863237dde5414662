"""Grammars are checked in a process of their own: what ends it is refused, and the next one is checked all the same.

Fault 48. The limits are those of the processor and of memory, so no test here depends on how busy the machine is.
"""

import asyncio
import json
import time

import pytest

from lightwell.errors import InvalidRequest
from lightwell.gateway.grammar_checker import GrammarChecker
from tests.gateway.fake_engine import byte_tokenizer

GOOD = 'start: "yes" | "no"'


@pytest.fixture
async def checker():
    checker = GrammarChecker(byte_tokenizer())
    yield checker
    await checker.end()


async def refused(checker: GrammarChecker, grammar: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await checker.check(grammar, "guided_grammar")
    assert (caught.value.status, caught.value.param) == (400, "guided_grammar")
    assert caught.value.message.startswith("'guided_grammar' cannot constrain an answer: ")
    return caught.value.message


def chain(length: int) -> str:
    """References so deep that following them overflows a stack."""
    defs = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    return f"start: %json {json.dumps({'$ref': '#/$defs/a0', '$defs': {**defs, f'a{length}': {}}})}"


async def test_the_process_starts_with_the_first_grammar_and_stays(checker):
    assert checker._process is None
    await checker.check(GOOD, "x")
    first = checker._process
    assert first is not None
    await checker.check('start: "other"', "x")
    assert checker._process is first


async def test_a_bad_grammar_is_refused_with_the_reason(checker):
    assert "unknown name" in await refused(checker, "start: nothing")
    assert "Invalid type" in await refused(checker, 'start: %json {"type": "foo"}')
    assert "nothing that this model can write" in await refused(checker, 'start: %json {"$ref": "#"}')
    assert "lone surrogate" in await refused(checker, 'start: "\ud800"')
    assert "bytes long" in await refused(checker, 'start: "' + "a" * 70_000 + '"')


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param('start: %json {"type": "integer", "multipleOf": 999983}', id="time"),
        pytest.param(chain(1000), id="stack"),
        pytest.param("start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(4000)) + '\nR4000: "a"', id="chain"),
    ],
)
async def test_a_grammar_that_ends_the_process_is_refused_and_the_next_one_is_checked(checker, grammar):
    assert "takes more than" in await refused(checker, grammar)
    await checker.check(GOOD, "x")
    assert "takes more than" in await refused(checker, grammar)


async def test_an_answer_is_given_again_without_asking(checker):
    await checker.check(GOOD, "x")
    await refused(checker, "start: nothing")
    await checker.end()
    await checker.check(GOOD, "y")
    await refused(checker, "start: nothing")
    assert checker._process is None


async def test_the_loop_goes_on_while_a_grammar_is_checked(checker):
    await checker.check(GOOD, "x")
    slow = asyncio.create_task(refused(checker, 'start: %json {"type": "integer", "multipleOf": 999983}'))
    ticks = 0
    while not slow.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks > 20


async def test_one_that_nobody_waits_for_any_more_does_not_answer_for_the_next(checker):
    await checker.check(GOOD, "x")
    left = asyncio.create_task(checker.check('start: %json {"type": "integer", "multipleOf": 999983}', "x"))
    await asyncio.sleep(0.05)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert "unknown name" in await refused(checker, "start: nothing")


async def test_a_checker_that_fails_by_itself_is_our_error_and_not_the_clients(checker, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with code 1"):
        await checker.check(GOOD, "x")


async def test_its_processor_time_is_not_the_servers(checker):
    await checker.check(GOOD, "x")
    before = time.process_time()
    await refused(checker, 'start: %json {"type": "integer", "multipleOf": 999983}')
    assert time.process_time() - before < 1  # of the two seconds that it took
