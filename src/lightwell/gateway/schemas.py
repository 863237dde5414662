"""JSON schemas as grammars: llguidance does them, and what it would quietly leave out is refused here.

It refuses by itself the keywords of today's drafts that it cannot do. It takes those of other drafts and of validators
for annotations, as the standard allows; but who writes ``divisibleBy`` means it. Unknown names stay annotations.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from lightwell.errors import UnsupportedParameter

Schema: TypeAlias = Mapping[str, Any] | bool

# No free white space: a small model can go on with it until its tokens are used up.
WHITESPACE = r"( |\n[ \t]{0,40})?"

_LEFT_OUT = {
    "divisibleBy": "use 'multipleOf'",
    "extends": "use 'allOf'",
    "disallow": "name the types that are allowed",
    "formatMinimum": "there is no such keyword in the standard",
    "formatMaximum": "there is no such keyword in the standard",
    "formatExclusiveMinimum": "there is no such keyword in the standard",
    "formatExclusiveMaximum": "there is no such keyword in the standard",
    "x-guidance": "these options could weaken the schema",
}
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_ONE_SCHEMA = ("additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains")
_LIST_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")


def json_term(schema: Schema, param: str, options: Mapping[str, Any] | None = None) -> str:
    """The schema as a term of a Lark grammar. ``options`` are llguidance's for JSON, such as its separators.

    Raises UnsupportedParameter, naming ``param``, for a keyword that would be left out.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    for part in _parts(schema):
        if (found := _left_out(part)) is not None:
            raise UnsupportedParameter(f"{param!r} has {found}.", param=param)
    return "%json " + json.dumps(
        {**schema, "x-guidance": options or {"whitespace_pattern": WHITESPACE}}, ensure_ascii=False
    )


def _left_out(schema: Mapping[str, Any]) -> str | None:
    """What of this one schema would be left out, and what to do about it."""
    for name, instead in _LEFT_OUT.items():
        if name in schema:
            return f"the keyword {name!r}, which is not supported: {instead}"
    if isinstance(schema.get("required"), bool):
        return "a boolean 'required', which is not supported: list the names beside 'properties'"
    if "$ref" in schema and ("$id" in schema or "id" in schema):
        return "'$id' beside '$ref', which is not supported: its meaning depends on the draft"
    return None


def _parts(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every schema in a schema, also those that only a ``$ref`` makes one."""
    found, seen = [root], set()
    while found:
        schema = found.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        found += [part for part in (*_inner(schema), _target(root, schema)) if isinstance(part, dict)]


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name in _OF_SCHEMAS:
        yield from value.values() if isinstance(value := schema.get(name), dict) else ()
    for name in _LIST_OF_SCHEMAS:
        yield from value if isinstance(value := schema.get(name), list) else ()
    for name in _ONE_SCHEMA:
        yield schema.get(name)


def _target(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """What a ``$ref`` within the document points to (RFC 6901); None for any other."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place
