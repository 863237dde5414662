"""Structured output: whatever way a request constrains its answer, as one grammar of llguidance's Lark dialect."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import GenerationBody
from lightwell.gateway.schemas import WHITESPACE, Schema, json_term
from lightwell.gateway.served import ServedModel

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Constraint:
    """``param`` is the place in the request that asked for the grammar."""

    grammar: str
    param: str


class _JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """``strict`` makes no difference: every schema is kept to."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """``schema`` beside ``json_object`` is what llama.cpp and others take."""

    type: str
    json_schema: _JsonSchema | None = None
    schema: dict[str, Any] | None = None


class _StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's. ``disable_fallback`` makes no difference: nothing falls back here."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None


def constraint(body: GenerationBody) -> Constraint | None:
    """What the request constrains its answer to, if it does; the grammar itself is still unchecked.

    Raises InvalidRequest where it is malformed, asks for more than one constraint, or for one that is not supported.
    """
    found = [*_from_response_format(body), *_from_structured_outputs(body), *_from_guided(body)]
    if len(found) > 1:
        names = " and ".join(repr(one.param) for one in found)
        raise InvalidRequest(f"{names} cannot be combined: an answer has one constraint.", param=found[1].param)
    return found[0] if found else None


async def checked_grammar(model: ServedModel, body: GenerationBody) -> str:
    """The grammar that the answer is to be drawn with, empty for none. Raises InvalidRequest where it cannot be."""
    asked = constraint(body)
    if asked is None:
        return ""
    await model.grammars.check(asked.grammar, asked.param)
    return asked.grammar


def either(answer: str, calls: str) -> str:
    """The grammar of an answer in this form, or of tool calls: both have a rule named start."""
    return answer.replace("start:", "start: answer | calls\nanswer:", 1) + "\n" + calls.replace("start:", "calls:", 1)


def _from_response_format(body: GenerationBody) -> Iterator[Constraint]:
    if body.response_format is None:
        return
    asked = _read(body.response_format, _ResponseFormat, "response_format")
    match asked:
        case _ResponseFormat("text", None, None):
            pass
        case _ResponseFormat("json_object", None, schema):
            yield _schema({"type": "object"} if schema is None else schema, "response_format", WHITESPACE)
        case _ResponseFormat("json_schema", _JsonSchema(schema=schema), None):
            yield _schema(schema, "response_format.json_schema.schema", WHITESPACE)
        case _ResponseFormat("json_schema", None):
            raise InvalidRequest("'response_format.json_schema' is required.", param="response_format.json_schema")
        case _:
            raise UnsupportedParameter(
                f"'response_format' of the type {asked.type!r} with these fields is not supported: there are text, "
                "json_object with or without a schema, and json_schema.",
                param="response_format",
            )


def _from_structured_outputs(body: GenerationBody) -> Iterator[Constraint]:
    if body.structured_outputs is None:
        return
    where = "structured_outputs"
    asked = _read(body.structured_outputs, _StructuredOutputs, where)
    spaces = _whitespace(asked.whitespace_pattern, bool(asked.disable_any_whitespace), f"{where}.whitespace_pattern")
    found = list(_one_of(where + ".", asked.json, asked.regex, asked.choice, asked.grammar, spaces))
    if asked.json_object:
        found.append(_schema({"type": "object"}, f"{where}.json_object", spaces))
    if not found:
        raise InvalidRequest(
            "'structured_outputs' needs one of json, regex, choice, grammar or json_object.", param=where
        )
    yield from found


def _from_guided(body: GenerationBody) -> Iterator[Constraint]:
    """The names that vLLM had before ``structured_outputs``."""
    spaces = _whitespace(body.guided_whitespace_pattern, False, "guided_whitespace_pattern")
    yield from _one_of("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar, spaces)


def _one_of(
    prefix: str,
    schema: Schema | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    spaces: str,
) -> Iterator[Constraint]:
    if schema is not None:
        yield _schema(schema, prefix + "json", spaces)
    if regex is not None:
        yield Constraint(f"start: {regex_term(regex)}", prefix + "regex")
    if choice is not None:
        yield _choice(choice, prefix + "choice")
    if grammar is not None:
        yield _lark(grammar, prefix + "grammar")


def _schema(schema: Schema | str, param: str, spaces: str) -> Constraint:
    if isinstance(schema, str):
        schema = _parsed(schema, param)
    options = {"whitespace_pattern": spaces} if spaces else {"whitespace_flexible": False}
    return Constraint(f"start: {json_term(schema, param, options)}", param)


def _parsed(text: str, param: str) -> Schema:
    try:
        return msgspec.json.decode(text, type=dict[str, Any] | bool)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"Invalid value for {param!r}: not a JSON schema: {error}.", param=param) from None


def _whitespace(pattern: str | None, none: bool, param: str) -> str:
    if pattern is not None and none:
        raise InvalidRequest(f"{param!r} cannot be combined with 'disable_any_whitespace'.", param=param)
    return "" if none else WHITESPACE if pattern is None else pattern


def _choice(choice: list[str], param: str) -> Constraint:
    if not choice:
        raise InvalidRequest(f"{param!r} is empty: there is nothing to choose from.", param=param)
    return Constraint("start: " + " | ".join(literal(text) for text in choice), param)


def _lark(grammar: str, param: str) -> Constraint:
    if re.search(r"^\s*[\w-]+\s*::=", grammar, re.MULTILINE):
        raise UnsupportedParameter(f"{param!r} is in EBNF, which is not supported: write it in Lark.", param=param)
    if not grammar.strip() or grammar.lstrip().startswith("{"):
        raise InvalidRequest(f"{param!r} is not a grammar: write it in Lark.", param=param)
    return Constraint(grammar, param)


def literal(text: str) -> str:
    """A text as a term of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")  # which Lark refuses as it is


def regex_term(regex: str) -> str:
    """A regular expression as a term of a Lark grammar, which puts it between slashes on one line."""
    escapes = {"/": r"\/", "\n": r"\n"}
    escaped = re.sub(r"\\.|/|\n", lambda found: escapes.get(found[0], found[0]), regex, flags=re.DOTALL)
    return f"/{escaped}/"


def _read(fields: Mapping[str, Any], kind: type[S], param: str) -> S:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise InvalidRequest(f"Invalid value for '{param}{where.removesuffix('`')}': {what}.", param=param) from None
