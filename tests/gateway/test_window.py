"""Which turns fit the context window: exactly as many as can, and never half of one."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.errors import ContextLengthExceeded
from lightwell.gateway.bodies import Message
from lightwell.gateway.window import Window, fewest_dropped, turns, without

ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.lists(st.builds(Message, ROLES, st.integers(0, 9).map("x".__mul__)), min_size=1, max_size=12)


async def encode(messages) -> list[int]:
    """One token for each character, and one for each message."""
    return [0] * sum(1 + len(message.content) for message in messages)


@given(MESSAGES)
def test_every_message_is_in_one_turn_or_an_instruction(messages):
    found = turns(messages)
    placed = [place for turn in found for place in turn]
    instructions = [n for n, message in enumerate(messages) if message.role in ("system", "developer")]
    assert sorted(placed + instructions) == list(range(len(messages)))
    assert placed == sorted(placed)
    for turn in found[1:]:
        assert messages[turn[0]].role == "user"
    for turn in found:
        assert all(messages[place].role in ("assistant", "tool") for place in turn[1:])


@given(MESSAGES, st.integers(0, 60))
def test_the_fewest_turns_go_and_the_last_one_stays(messages, room):
    window, found = Window(room + 5, "context window", 5), turns(messages)
    counts = range(max(len(found), 1))
    sizes = [len(asyncio.run(encode(without(messages, found[:count])))) for count in counts]
    fitting = [count for count, size in enumerate(sizes) if size <= room]
    if not fitting:
        with pytest.raises(ContextLengthExceeded) as caught:
            asyncio.run(fewest_dropped(messages, encode, window))
        error = caught.value
        assert (error.prompt_tokens, error.max_tokens, error.limit_tokens) == (sizes[-1], 5, room + 5)
        return
    count, kept = asyncio.run(fewest_dropped(messages, encode, window))
    assert (count, len(kept)) == (fitting[0], sizes[fitting[0]])


async def test_a_long_conversation_is_counted_a_few_times_only():
    counted = 0

    async def counting(some):
        nonlocal counted
        counted += 1
        return await encode(some)

    messages = [Message("user", "x" * 9) for _ in range(1000)]
    count, _ = await fewest_dropped(messages, counting, Window(1000, "context window", 0))
    assert count == 900
    assert counted <= 12
