"""Grammars of forced calls: whatever a model draws under one, the parser reads back as calls with valid arguments."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lightwell.gateway.tools.asked import offered_tools
from lightwell.gateway.tools.dialect import STYLES
from lightwell.gateway.tools.grammar import forced_grammar
from lightwell.gateway.tools.parser import merged
from lightwell.text.tokenizer import Tokenizer
from tests.gateway.fake_engine import EOS
from tests.gateway.tools.walking import TOKENIZERS, WORDS, walk

SETS = ("simple_python_first100", "multiple_first40", "parallel_first40", "irrelevance_first30")
PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def json_schema(parameters: Any) -> Any:
    """The collection names types as Python does."""
    if isinstance(parameters, list):
        return [json_schema(item) for item in parameters]
    if not isinstance(parameters, dict):
        return parameters
    kind = parameters.get("type")
    named = {key: json_schema(value) for key, value in parameters.items() if not (key == "type" and kind == "any")}
    return named | ({"type": PYTHON_TYPES[kind]} if isinstance(kind, str) and kind in PYTHON_TYPES else {})


def samples(shared: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in SETS:
        for line in (shared / f"data/corpora/tool-calling/BFCL_v4_{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            tools = [{"type": "function", "function": json_schema(function)} for function in row["function"]]
            yield row["id"], tools


def calls_of(style, tools, tokens: list[int], tokenizer: Tokenizer) -> tuple[str, list[tuple[str, Any]]]:
    parser = style(tools.schemas.keys(), tools.most)
    ended = tokens[:-1] if tokens[-1] == EOS else tokens
    text = tokenizer.decode(ended, skip_special=False, continues=True)
    outcomes = [parser.feed(text), parser.finish()]
    calls = merged([call for _, found in outcomes for call in found])
    assert parser.whole == len(calls) >= 1
    return "".join(said for said, _ in outcomes), [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.slow
def test_every_sample_of_the_collection_is_held_to_its_functions(shared):
    """Random text under the grammar of each sample's tools: all of it is calls, and all arguments fit their schema."""
    draw = random.Random(1)
    walked = 0
    for number, (name, offer) in enumerate(samples(shared)):
        tools = offered_tools(offer)
        assert tools is not None
        tools = type(tools)(tools.functions, tools.schemas, tuple(tools.schemas))
        style, which = STYLES[number % len(STYLES)], number // len(STYLES) % 2
        tokens = walk(forced_grammar(style, tools, TOKENIZERS[which]), WORDS[which], draw)
        said, calls = calls_of(style, tools, tokens, TOKENIZERS[which])
        assert said == "", name
        for function, arguments in calls:
            jsonschema.validate(arguments, tools.schemas[function])
        walked += 1
    assert walked == 210


@pytest.mark.parametrize("style", STYLES)
def test_a_named_function_is_called_exactly_once(style):
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
        "$defs": {"n": {"type": "integer"}},
    }
    offer = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    tools = offered_tools(offer)
    tools = type(tools)(tools.functions, tools.schemas, ("g",), 1)
    for seed in range(5):
        tokens = walk(forced_grammar(style, tools, TOKENIZERS[1]), WORDS[1], random.Random(seed))
        said, calls = calls_of(style, tools, tokens, TOKENIZERS[1])
        assert said == ""
        [(name, arguments)] = calls
        assert name == "g"
        jsonschema.validate(arguments, schema)
