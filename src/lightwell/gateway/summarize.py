"""Summaries: the older turns of a conversation in a few sentences of the model's own, where they no longer fit.

A summary goes on from the one of the turns before, so a conversation that grows is not read again and again.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from lightwell.gateway.bodies import ChatBody, Message
from lightwell.gateway.caller import Caller
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import joined
from lightwell.gateway.instructions import instructed
from lightwell.gateway.plan import Prompt, plan
from lightwell.gateway.prompts import encode_messages
from lightwell.gateway.served import ServedModel
from lightwell.gateway.stages import answered
from lightwell.gateway.window import without
from lightwell.units import Tokens

_OVERHEAD: Tokens = 128  # of the words around what is summarized, and of the template
_HEADING = "Summary of the earlier conversation:\n"
_ASK = (
    "Summarize the conversation below in a few sentences. Keep names, numbers, decisions, and what the user wants. "
    "Write only the summary.\n\n"
)


async def summarized(
    gateway: Gateway,
    model: ServedModel,
    caller: Caller,
    messages: list[Message],
    dropped: list[list[int]],
    longest: Tokens,
) -> list[Message]:
    """The conversation with a summary of at most ``longest`` tokens in place of the dropped turns, its oldest ones."""
    old = [[messages[place] for place in turn] for turn in dropped]
    known, summary = _longest_known(gateway, model, caller, old)
    if known < len(old):
        for part in _parts(model, old[known:], model.window()[0] - 2 * longest - _OVERHEAD):
            summary = await _write(gateway, model, caller, _asking(summary, part), longest)
        gateway.summaries.keep(_key(caller, model, old), summary)
    return instructed(without(messages, dropped), [_HEADING + summary], model, first=False)


def _longest_known(gateway: Gateway, model: ServedModel, caller: Caller, turns: list[list[Message]]) -> tuple[int, str]:
    """The summary of as many of the first turns as there is one for."""
    for count in range(len(turns), 0, -1):
        if found := gateway.summaries.find(_key(caller, model, turns[:count])):
            return count, found
    return 0, ""


def _key(caller: Caller, model: ServedModel, turns: list[list[Message]]) -> bytes:
    facts = msgspec.json.encode((caller.tenant, model.fingerprint(), turns))
    return hashlib.blake2b(facts, digest_size=16).digest()


def _parts(model: ServedModel, turns: list[list[Message]], most: Tokens) -> Iterator[str]:
    """What was said, in parts that the model can read at once."""
    told = "\n".join(f"{message.role}: {_text(message)}" for turn in turns for message in turn)
    tokens = model.tokenizer.encode(told, special=False)
    for start in range(0, len(tokens), most):
        yield model.tokenizer.decode(tokens[start : start + most], skip_special=False)


def _text(message: Message) -> str:
    content = message.content or ""
    said = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    return " ".join([*said, *(f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or ())])


def _asking(earlier: str, part: str) -> list[Message]:
    before = f"{_HEADING}{earlier}\n" if earlier else ""
    return [Message(role="user", content=_ASK + before + part)]


async def _write(gateway: Gateway, model: ServedModel, caller: Caller, messages: list[Message], longest: Tokens) -> str:
    """Always the likeliest tokens, so that the same turns have the same summary. It is accounted like any answer."""
    tokens = await encode_messages(model, messages, None, None)
    body = ChatBody(messages=messages, temperature=0.0)
    generation = plan(model, caller, body, "summary", [Prompt(tokens, longest)], None)
    whole = await joined(answered(gateway, generation), 1)
    return whole[0].text.strip()
