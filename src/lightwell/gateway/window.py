"""The context window: which turns of a conversation fit, beside the instructions, the tools and room for the answer.

Nothing is cut that was not asked for, and what was cut is always reported.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from lightwell.errors import ContextLengthExceeded
from lightwell.gateway.bodies import Message, Truncation
from lightwell.gateway.served import ServedModel
from lightwell.units import Tokens

Encode: TypeAlias = Callable[[Sequence[Message]], Awaitable[list[int]]]
_LEAST_ROOM: Tokens = 256  # for an answer whose length nobody asked for: one that is cut at once is no use
_INSTRUCTING = ("system", "developer")


class ContextReport(msgspec.Struct, frozen=True):
    """What became of the conversation. ``dropped_tokens``: how many the prompt has fewer, with any summary in it."""

    truncation: Truncation
    window_tokens: Tokens
    prompt_tokens: Tokens
    dropped_messages: int = 0
    dropped_tokens: Tokens = 0
    summary_tokens: Tokens = 0
    instructions: tuple[str, ...] = ()  # whose stored instructions were added: "key", "model"


@dataclass(frozen=True)
class Window:
    """``tokens`` are for prompt and answer together; ``what`` sets that limit. ``answer`` is the room that is kept."""

    tokens: Tokens
    what: str
    answer: Tokens
    most_prompt: Tokens | None = None  # allowed by the operator

    @property
    def prompt(self) -> Tokens:
        """The longest prompt that leaves room for the answer."""
        room = self.tokens - self.answer
        return room if self.most_prompt is None else min(room, self.most_prompt)

    def with_room_for(self, more: Tokens) -> "Window":
        return replace(self, answer=self.answer + more)

    def exceeded(self, prompt: Tokens) -> ContextLengthExceeded:
        return ContextLengthExceeded(prompt, self.answer, self.tokens, self.what)


def window_of(model: ServedModel, asked: Tokens | None) -> Window:
    """For an answer of this length, or of the usual one."""
    tokens, what = model.window()
    usual = model.lengths.default(None)
    least = min(_LEAST_ROOM, tokens // 4) if usual is None else usual
    return Window(tokens, what, least if asked is None else asked, model.lengths.max_prompt)


def turns(messages: Sequence[Message]) -> list[list[int]]:
    """The places of the messages of each turn, oldest first. A turn begins with a user's words and has everything up to
    the next user's: a call of a tool and its result are never parted. Instructions are no part of any."""
    found: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.role in _INSTRUCTING:
            continue
        if message.role == "user" or not found:
            found.append([])
        found[-1].append(place)
    return found


def without(messages: Sequence[Message], dropped: Sequence[Sequence[int]]) -> list[Message]:
    places = {place for turn in dropped for place in turn}
    return [message for place, message in enumerate(messages) if place not in places]


async def fewest_dropped(messages: Sequence[Message], encode: Encode, window: Window) -> tuple[int, list[int]]:
    """How many of the oldest turns have to go so that the rest fits, and the tokens of that rest. The last turn stays.

    Counted exactly, with about log2(turns) encodings. Raises ContextLengthExceeded where the last turn and the
    instructions alone are too long.
    """
    all_turns = turns(messages)
    most = max(len(all_turns) - 1, 0)
    kept = await encode(without(messages, all_turns[:most]))
    if len(kept) > window.prompt:
        raise window.exceeded(len(kept))
    fits, too_few = most, -1
    while fits - too_few > 1:
        middle = (fits + too_few) // 2
        tokens = await encode(without(messages, all_turns[:middle]))
        if len(tokens) > window.prompt:
            too_few = middle
        else:
            fits, kept = middle, tokens
    return fits, kept
