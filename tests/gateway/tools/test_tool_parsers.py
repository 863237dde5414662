"""The parsers: what a text says does not depend on where it is cut, garbage never raises, and nothing is lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightwell.gateway.tools.dialect import STYLES
from lightwell.gateway.tools.gemma import Gemma
from lightwell.gateway.tools.hermes import Hermes
from lightwell.gateway.tools.llama3 import Llama3
from lightwell.gateway.tools.mistral import Mistral, MistralArray
from lightwell.gateway.tools.parser import Parser, merged

NAMES = ["weather", "math.add", "get-time"]
ALL = pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), max_size=3)
PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```", "tool_code"),
    *('{"name": "weather"', '"arguments": ', '"parameters": {', '{"a": 1', "weather(", "a=", "'b'", "True", "None)"),
    *("{", "}", "[", "]", ",", ":", ";", '"', "'", "\\", "\\u12", "\n", " ", "weather", "1", "-", "é", "\u2028", "\0"),
]
GARBAGE = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def read(style: type[Parser], text: str, cuts=(), most=None):
    """Content, calls as (name, arguments) and how many of them are whole."""
    parser = style(NAMES, most)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    outcomes = [parser.feed(text[begin:end]) for begin, end in pairwise(bounds)]
    outcomes.append(parser.finish())
    deltas = [delta for _, calls in outcomes for delta in calls]
    seen = set()
    for delta in deltas:
        assert (delta.name is not None) == (delta.index not in seen), "the name comes once, with the first delta"
        seen.add(delta.index)
    calls = merged(deltas)
    assert [call.index for call in calls] == list(range(len(calls)))
    return "".join(content for content, _ in outcomes), [(c.name, c.arguments) for c in calls], parser.whole


@ALL
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, before=st.sampled_from(["", "Let me see.", "é\n\n"]), cuts=st.lists(st.integers(0, 200)))
def test_what_a_style_writes_its_parser_reads_back(style, calls, before, cuts):
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    text = before + style.written(written) if calls else before
    content, found, whole = read(style, text, cuts)
    assert found == written, "arguments come out as they were written"
    assert whole == len(calls)
    assert content == (before.rstrip() if calls else before)


@ALL
@settings(max_examples=200, deadline=None)
@given(text=GARBAGE, cuts=st.lists(st.integers(0, 150), max_size=30))
@example(text='<tool_call>{"arguments": {}, "name": "weather"', cuts=[])
def test_every_split_says_the_same_and_garbage_never_raises(style, text, cuts):
    outcome = read(style, text)
    assert read(style, text, cuts) == outcome
    assert read(style, text, range(len(text))) == outcome
    content, calls, whole = outcome
    assert whole <= len(calls)
    for name, _ in calls:
        assert name in NAMES
    for _, arguments in calls:
        assert arguments == "" or arguments.startswith("{")
    if not calls:
        assert content == text, "what is no call is content, unchanged"


@ALL
@given(text=GARBAGE, cuts=st.lists(st.integers(0, 150), max_size=10))
def test_arguments_of_whole_calls_are_json_objects(style, text, cuts):
    _, calls, whole = read(style, style.written([("weather", "{}")]) + text, cuts)
    parsed = 0
    for _, arguments in calls:
        try:
            parsed += isinstance(json.loads(arguments), dict)
        except ValueError:
            continue
    assert parsed >= whole >= 1


@ALL
@given(arguments=ARGUMENTS, cut=st.integers(1, 300))
def test_a_call_that_is_cut_off_is_a_partial_one_or_text(style, arguments, cut):
    text = style.written([("weather", json.dumps(arguments))])
    content, calls, whole = read(style, text[:cut])
    if calls:
        [(name, begun)] = calls
        assert name == "weather"
        assert json.dumps(arguments).startswith(begun)
        assert whole == (begun == json.dumps(arguments))
        assert content == ""
    else:
        assert content == text[:cut]
        assert whole == 0


@ALL
def test_calls_of_functions_that_were_not_offered_are_text(style):
    text = "So: " + style.written([("rm", '{"path": "/"}')]) + " done"
    assert read(style, text) == (text, [], 0)


@ALL
def test_a_full_parser_reads_no_further(style):
    text = style.written([("weather", "{}"), ("math.add", '{"a": 1}')]) + " and more"
    for cuts in ((), range(len(text))):
        assert read(style, text, cuts, most=1) == ("", [("weather", "{}")], 1)


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        (Hermes, '<tool_call>{"arguments": {"a": 2}, "name": "weather"}</tool_call>', "", [("weather", '{"a": 2}')]),
        (Hermes, '<tool_call>{"name": "weather"}</tool_call>', "", [("weather", "{}")]),
        (Hermes, '<tool_call>\n{"name": "weather", "arguments": {"a": 1}', "", [("weather", '{"a": 1}')]),
        (Hermes, '<tool_call>{"name": "weather", "arguments": 5}</tool_call>', None, []),
        (Hermes, '<tool_call><tool_call>{"name": "weather"}</tool_call>', "<tool_call>", [("weather", "{}")]),
        (Hermes, "a\n\n<tool_call>", "a\n\n<tool_call>", []),
        (Hermes, "  a < b <tool  ", "  a < b <tool  ", []),
        (Llama3, '<|python_tag|>{"name": "weather", "parameters": {}}', "", [("weather", "{}")]),
        (Llama3, '{"type": "function", "name": "weather", "parameters": {"a": "b"}}', "", [("weather", '{"a": "b"}')]),
        (Llama3, '{"name": "weather", "parameters": {}};\n{"name": "weather"}', "", [("weather", "{}")] * 2),
        (Llama3, '{"colour": "red", "name": "weather"}', None, []),
        (Llama3, '<|python_tag|>weather.call(query="x")', None, []),
        (Mistral, '[TOOL_CALLS] [{"name": "weather", "arguments": {}, "id": "abc"}]', "", [("weather", "{}")]),
        (Mistral, '[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"a": 1}', "", [("weather", '{"a": 1}')]),
        (Mistral, '[TOOL_CALLS]weather{"a": 1}', "", [("weather", '{"a": 1}')]),
        (Mistral, "[TOOL_CALLS]" + "x" * 300, None, []),
        (MistralArray, "[TOOL_CALLS]weather[ARGS]{}", None, []),
        (Gemma, "[weather(a=1, b='x', c=[True, None]), get-time()]", "", "python"),
        (Gemma, "```tool_code\nweather(a=1, b='x', c=[true, null])\nget-time()\n```", "", "python"),
        (Gemma, '```json\n{"name": "weather", "parameters": {}}\n```', "", [("weather", "{}")]),
        (Gemma, "see [1] and [text](url)\n```python\nprint(1)\n```", None, []),
        (Gemma, "[weather(5)]", None, []),
    ],
)
def test_what_models_write(style, text, content, calls):
    """``None``: all of the text."""
    python = [("weather", '{"a": 1, "b": "x", "c": [true, null]}'), ("get-time", "{}")]
    expected = python if calls == "python" else calls
    assert read(style, text) == (text if content is None else content, expected, len(expected))


def test_pythons_spelling_and_raw_line_breaks_become_json():
    text = (
        "<tool_call>{'name': 'weather', 'arguments': {'a': None, 'b': \"it's \\d\n\", 'c': 'say \"\\'\"'}}</tool_call>"
    )
    _, [(_, arguments)], whole = read(Hermes, text)
    assert whole == 1
    assert json.loads(arguments) == {"a": None, "b": "it's \\d\n", "c": 'say "\'"'}


def test_arguments_that_break_off_stay_a_partial_call_and_the_rest_is_text():
    text = '<tool_call>{"name": "weather", "arguments": {"a": 1 oops}}</tool_call>'
    assert read(Hermes, text) == ("oops}}</tool_call>", [("weather", '{"a": 1 ')], 0)


def test_deep_nesting_is_read_like_any_other():
    deep = '{"a": ' + "[" * 5000 + "]" * 5000 + "}"
    _, [(_, arguments)], whole = read(Hermes, Hermes.written([("weather", deep)]))
    assert (arguments, whole) == (deep, 1)


def test_arguments_are_told_as_they_come():
    parser = Hermes(NAMES)
    parser.feed('<tool_call>{"name": "weather", "arguments": ')
    assert [(call.name, call.arguments) for call in parser.feed('{"city": "O')[1]] == [("weather", '{"city": "O')]
    assert [(call.name, call.arguments) for call in parser.feed('slo"')[1]] == [(None, 'slo"')]
