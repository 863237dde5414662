"""Stored instructions: what the operator has every chat of a key, a team or a model begin with."""

from collections.abc import Sequence

import msgspec

from lightwell.gateway.bodies import Message, Role
from lightwell.gateway.caller import Caller
from lightwell.gateway.served import ServedModel


def stored_for(texts: dict[str, str], caller: Caller, model: ServedModel) -> list[tuple[str, str]]:
    """Subjects and their texts, in the order that the model sees them."""
    subjects = (f"model:{model.names[0]}", f"team:{caller.team}", f"key:{caller.key}")
    return [(subject, texts[subject]) for subject in subjects if subject in texts]


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
