"""The grammar of an answer that has to call: a Lark grammar as llguidance reads it, from the tools' schemas."""

from collections.abc import Iterable, Mapping
from typing import Any

from lightwell.gateway.schemas import json_term
from lightwell.gateway.structured import literal
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.parser import Parser
from lightwell.text.tokenizer import Tokenizer

# As templates write arguments back into the conversation, so that the next turn finds its prefix in the cache. Free
# white space would also be what a small model can write for ever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_CALLS = 16  # in one answer: without a bound a small model goes on until its tokens are used up


def forced_grammar(parser: type[Parser], tools: Tools, tokenizer: Tokenizer) -> str:
    """One call or more of the ``forced`` functions and nothing else, in the parser's style.

    Control tokens that the style is written with are those tokens, by id.
    """
    calls = [f"call_{index}" for index in range(len(tools.forced))]
    further = (tools.most or _MOST_CALLS) - 1
    between = f"({_literal(parser.between, tokenizer)} call){{0,{further}}}" if further else ""
    start = [_literal(parser.opening, tokenizer), "call", between, _literal(parser.closing, tokenizer)]
    rules = [f"start: {_sequence(start)}", f"call: {' | '.join(calls)}"]
    for rule, name in zip(calls, tools.forced, strict=True):
        before, after = parser.around(name)
        written = [
            _literal(before, tokenizer),
            json_term(tools.schemas[name], "tools", _SPACING),
            _literal(after, tokenizer),
        ]
        rules.append(f"{rule}: {_sequence(written)}")
    return "\n".join(rules) + "\n"


def arguments_grammar(schema: Mapping[str, Any], where: str) -> str:
    """The arguments of one function alone. Raises UnsupportedParameter, by place, for what would be left out."""
    return f"start: {json_term(schema, where, _SPACING)}\n"


def _literal(text: str, tokenizer: Tokenizer) -> str:
    parts = tokenizer.specials.split(text)
    return _sequence(f"<[{part}]>" if isinstance(part, int) else literal(part) for part in parts)


def _sequence(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)
