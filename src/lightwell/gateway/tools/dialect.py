"""Dialect: how tools and calls are put before a model and read from it, found by trying its chat template.

A template that shows tools is asked to write a call, and the parser that reads this call back is the model's. Every
other template gets our own words: the tools in a system text, calls and their results as text of the Hermes style.
"""

import json
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

from lightwell.errors import InvalidRequest
from lightwell.gateway.tools.gemma import Gemma
from lightwell.gateway.tools.hermes import Hermes
from lightwell.gateway.tools.llama3 import Llama3
from lightwell.gateway.tools.mistral import Mistral, MistralArray
from lightwell.gateway.tools.parser import Parser
from lightwell.text.chat import ChatTemplate, encode_chat
from lightwell.text.tokenizer import Tokenizer

# The first that fits is taken: arrays are read by both of Mistral's, a bare object by Llama's and by Gemma's.
STYLES: tuple[type[Parser], ...] = (Hermes, MistralArray, Mistral, Llama3, Gemma)
_NAME, _ARGUMENTS, _WORD = "find_probe", {"place": "Oslo"}, "Zebra"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Find one.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where."}},
            "required": ["place"],
        },
    },
}
_ASKED = {"role": "user", "content": "Hello."}
_CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """``native``: the template shows tools and writes calls itself. ``takes_system``: it has a place for a system text.
    ``shown`` are the control tokens that calls are made of."""

    parser: type[Parser]
    native: bool
    takes_system: bool
    shown: frozenset[int]


def find_dialect(tokenizer: Tokenizer, template: ChatTemplate, name: str | None) -> Dialect:
    """The dialect of a template; ``name`` of a parser chooses that one, whatever the template writes."""
    written = _written_call(tokenizer, template)
    styles = [style for style in STYLES if name in (None, style.name)]
    found = next((style for style in styles if written is not None and _reads(style, written)), None)
    parser = found or (styles[-1] if name else Hermes)
    system = _rendered(tokenizer, template, [{"role": "system", "content": _WORD}, _ASKED]) or ""
    return Dialect(
        parser=parser,
        native=written is not None and (found is not None or name is not None),
        takes_system=_WORD in system,
        shown=frozenset(
            part for marker in parser.markers for part in tokenizer.specials.split(marker) if isinstance(part, int)
        ),
    )


def _written_call(tokenizer: Tokenizer, template: ChatTemplate) -> str | None:
    """What the template makes of a call: where a rendered answer with it differs from one with a word in its place.
    None where it does not show tools, or does not write calls."""
    shown = _rendered(tokenizer, template, [_ASKED])
    said = _rendered(tokenizer, template, [_ASKED, {"role": "assistant", "content": _WORD}])
    called = _rendered(tokenizer, template, [_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]}])
    if shown is None or said is None or called is None or _NAME not in shown:
        return None
    begin = _alike(said, called)
    said, called = said[begin:], called[begin:]
    end = _alike(said[::-1], called[::-1])
    call = called[: len(called) - end]
    return call if _NAME in call else None


def _alike(left: str, right: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _rendered(tokenizer: Tokenizer, template: ChatTemplate, messages: list[Message]) -> str | None:
    """The conversation as the model sees it; None where the template refuses it."""
    try:
        ids = encode_chat(tokenizer, template, messages, tools=[_TOOL], add_generation_prompt=False)
    except InvalidRequest:
        return None
    return tokenizer.decode(ids, skip_special=False)


def _reads(style: type[Parser], written: str) -> bool:
    """Whether a parser makes of this text the one call that it is, and nothing else."""
    parser = style({_NAME})
    said, calls = parser.feed(written)
    rest, more = parser.finish()
    whole = [(call.name, call.arguments) for call in [*calls, *more]]
    return parser.whole == len(whole) == 1 and json.loads(whole[0][1]) == _ARGUMENTS and not (said + rest).strip()
