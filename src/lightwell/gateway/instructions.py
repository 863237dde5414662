"""Stored instructions: what the operator has every chat of a key, a team or a model begin with."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lightwell.gateway.bodies import Message, Role
from lightwell.gateway.caller import Caller
from lightwell.gateway.served import ServedModel
from lightwell.units import Seconds

if TYPE_CHECKING:
    from lightwell.gateway.store import Store

_FRESH_SECONDS: Seconds = 1.0  # how soon a change made by another process is seen


class Instructions:
    """A copy of the stored ones, at most a second old."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._texts: dict[str, str] = {}
        self._read_at = -_FRESH_SECONDS

    async def of(self, caller: Caller, model: ServedModel) -> list[tuple[str, str]]:
        """Subjects and their texts, in the order that the model sees them."""
        if self._store.nothing_is_set():
            return []
        if time.monotonic() - self._read_at >= _FRESH_SECONDS:
            database = await self._store.database()
            self._texts, self._read_at = await database.instructions.all(), time.monotonic()
        subjects = (f"model:{model.names[0]}", f"team:{caller.team}", f"key:{caller.key}")
        return [(subject, self._texts[subject]) for subject in subjects if subject in self._texts]

    def forget(self) -> None:
        """Read again before the next chat: something was changed here."""
        self._read_at = -_FRESH_SECONDS


def instructed(
    messages: Sequence[Message], texts: Sequence[str], model: ServedModel, *, first: bool = True
) -> list[Message]:
    """The conversation with these texts in its system message, before the words that are there or after them; for a
    template without a place for it, before the first user's words."""
    if not texts:
        return list(messages)
    added = "\n\n".join(texts)
    role: Role = "system" if model.dialect.takes_system else "user"
    roles = ("system", "developer") if model.dialect.takes_system else ("user",)
    place = next((index for index, message in enumerate(messages) if message.role in roles), None)
    if place is None or (model.dialect.takes_system and place != 0):
        return [Message(role=role, content=added), *messages]
    content = messages[place].content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    text = {"type": "text", "text": added}
    joined = [text, *parts] if first or not model.dialect.takes_system else [*parts, text]
    return [*messages[:place], msgspec.structs.replace(messages[place], content=joined), *messages[place + 1 :]]
