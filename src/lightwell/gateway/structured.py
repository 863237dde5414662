"""Structured output: what a request says of its answer's form, as one grammar. OpenAI's and vLLM's ways to say it.

An answer is never less constrained than was asked: what cannot be followed to the letter is a 400 that names it.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import GenerationBody, StructuredOutputs
from lightwell.sampling.grammar import complaint_about, json_rule, lark_of_gbnf, regex_grammar

# Assertions of other drafts and dialects, which llguidance takes for annotations and would not hold an answer to.
_UNHEARD = frozenset({"divisibleBy", "disallow", "extends"} | {f"format{bound}" for bound in ("Minimum", "Maximum")})
_LARGEST_MULTIPLE = 10_000  # of a million the first mask takes many seconds
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else")
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


async def grammar_of(body: GenerationBody) -> str:
    """The grammar of the answer; empty where it may be anything.

    Raises InvalidRequest, naming the parameter, for a form that cannot be read or followed, or where two are given.
    """
    asked = [(param, make) for param, make in _forms(body) if make is not None]
    if not asked:
        return ""
    if len(asked) > 1:
        names = " and ".join(repr(param) for param, _ in asked)
        raise InvalidRequest(f"{names} both say what form the answer has: give one.", param=asked[1][0])
    param, grammar = asked[0]
    if complaint := await asyncio.to_thread(complaint_about, grammar):
        raise InvalidRequest(f"{param!r} cannot be followed: {complaint}", param=param)
    return grammar


def either(answer: str, calls: str) -> str:
    """The Lark grammar of an answer in this form, or of tool calls: both are grammars with a rule named start."""
    return answer.replace("start:", "start: answer | calls\nanswer:", 1) + calls.replace("start:", "calls:", 1)


def _forms(body: GenerationBody) -> Iterable[tuple[str, str | None]]:
    """Every parameter that can give the answer a form, and the grammar that it gives."""
    yield "response_format", _of_response_format(body.response_format)
    outputs = body.structured_outputs or StructuredOutputs()
    yield "structured_outputs.json", _of_json(outputs.json, "structured_outputs.json")
    yield "structured_outputs.json_object", _of_json({"type": "object"}, "") if outputs.json_object else None
    yield "structured_outputs.regex", _of_regex(outputs.regex)
    yield "structured_outputs.choice", _of_choice(outputs.choice, "structured_outputs.choice")
    yield "structured_outputs.grammar", _of_grammar(outputs.grammar)
    yield "guided_json", _of_json(body.guided_json, "guided_json")
    yield "guided_regex", _of_regex(body.guided_regex)
    yield "guided_choice", _of_choice(body.guided_choice, "guided_choice")
    yield "guided_grammar", _of_grammar(body.guided_grammar)


def _of_response_format(asked: dict[str, Any] | None) -> str | None:
    param = "response_format"
    match asked:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _of_json({"type": "object"}, param)
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return _of_json(schema, f"{param}.json_schema.schema")
        case {"type": "json_schema"}:
            raise InvalidRequest(f"'{param}.json_schema.schema' is required.", param=f"{param}.json_schema.schema")
    raise InvalidRequest(
        f"Invalid value for '{param}.type': give text, json_object or json_schema.", param=f"{param}.type"
    )


def _of_json(schema: dict[str, Any] | str | None, param: str) -> str | None:
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(f"{param!r} is not a JSON schema: {error}.", param=param) from None
    check_schema(schema, param)
    return f"start: {json_rule(schema)}\n"


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raises InvalidRequest for a keyword that would bind the answer and that it would not be held to."""
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        if unheard := sorted(_UNHEARD & each.keys()):
            raise InvalidRequest(f"The schema's keyword {unheard[0]!r} is not supported.", param=param)
        if isinstance(multiple := each.get("multipleOf"), int | float) and multiple > _LARGEST_MULTIPLE:
            raise InvalidRequest(f"'multipleOf' above {_LARGEST_MULTIPLE} is not supported.", param=param)
        waiting += [each[name] for name in _SCHEMAS if name in each]
        for name in _SCHEMAS_BY_NAME:
            waiting += each[name].values() if isinstance(each.get(name), dict) else ()
        for name in _LISTS_OF_SCHEMAS:
            waiting += each[name] if isinstance(each.get(name), list) else ()


def _of_regex(pattern: str | None) -> str | None:
    return None if pattern is None else regex_grammar(pattern)


def _of_choice(choices: list[str] | None, param: str) -> str | None:
    if choices is None:
        return None
    if not all(choices) or not choices:
        raise InvalidRequest(f"{param!r} needs at least one choice, and none that is empty.", param=param)
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices) + "\n"


def _of_grammar(text: str | None) -> str | None:
    """Lark as llguidance has it, or GBNF, which llama.cpp's users have."""
    return lark_of_gbnf(text) if text is not None and "::=" in text else text
