"""Every way of constraining an answer becomes one grammar that does what was asked, or is refused by name."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import ChatBody
from lightwell.gateway.schemas import json_term
from lightwell.gateway.structured import constraint, literal, regex_term
from lightwell.sampling.grammar import Grammars
from tests.gateway.fake_engine import byte_tokenizer
from tests.sampling.walks import walk

TOKENIZER = byte_tokenizer()
GRAMMARS = Grammars(lambda: TOKENIZER)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def asked(**fields):
    return constraint(ChatBody(messages=[], **fields))


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is an answer that the grammar allows."""
    matcher = GRAMMARS.start(grammar).result()
    matcher.advance(list(text.encode()))
    if matcher.error:
        return False
    matcher.advance([max(TOKENIZER.stop_ids)]) if matcher.finished else None
    return matcher.finished or matcher._native.is_accepting()


def refused(**fields) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"guided_whitespace_pattern": " ?"},
    ],
)
def test_what_asks_for_nothing_constrains_nothing(fields):
    assert asked(**fields) is None


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "param", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", '{"b": [1]}', "[1]"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format", '{"a": 1}', '{"b": 1}'),
        ({"response_format": json_schema(SCHEMA)}, "response_format.json_schema.schema", '{"a": 1}', '{"a": ""}'),
        (
            {"response_format": json_schema(SCHEMA, strict=False, description="x")},
            "response_format.json_schema.schema",
            '{"a":-1}',
            "{}",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", '{"a": 1}', "{}"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", '{"a": 1}', "{}"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", "{}", "1"),
        ({"structured_outputs": {"regex": "[ab]+/c"}}, "structured_outputs.regex", "aba/c", "abac"),
        ({"structured_outputs": {"choice": ["yes", 'a "b"\n']}}, "structured_outputs.choice", 'a "b"\n', "y"),
        ({"structured_outputs": {"grammar": 'start: "a" b\nb: "c"*'}}, "structured_outputs.grammar", "acc", "c"),
        ({"guided_json": SCHEMA}, "guided_json", '{"a": 1}', "{}"),
        ({"guided_json": True}, "guided_json", '["anything"]', "nothing"),
        ({"guided_regex": r"\d{2}"}, "guided_regex", "12", "123"),
        ({"guided_choice": ["é", "日本"]}, "guided_choice", "日本", "日"),
        ({"guided_grammar": 'start: /a+/ "."'}, "guided_grammar", "aa.", "aa"),
    ],
)
def test_every_way_to_ask(fields, param, right, wrong):
    found = asked(**fields)
    assert found.param == param
    assert accepts(found.grammar, right)
    assert not accepts(found.grammar, wrong)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {}}, "response_format", "type"),
        ({"response_format": {"type": 1}}, "response_format", "str"),
        ({"response_format": {"type": "grammar"}}, "response_format", "'grammar'"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format", "structures"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", "'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": json_schema([1])}, "response_format", "schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
        ({"response_format": json_schema({}, strikt=True)}, "response_format", "strikt"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"guided_json": "{"}, "guided_json", "not a JSON schema"),
        ({"guided_json": "3"}, "guided_json", "not a JSON schema"),
        ({"guided_grammar": 'root ::= "a" b'}, "guided_grammar", "EBNF"),
        ({"guided_grammar": '{"grammars": []}'}, "guided_grammar", "Lark"),
        ({"guided_grammar": " "}, "guided_grammar", "Lark"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "disable_any_whitespace",
        ),
    ],
)
def test_what_is_malformed_or_not_supported_is_refused_by_name(fields, param, said):
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)
    assert said in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
        {"guided_regex": "a", "guided_choice": ["a"]},
        {"structured_outputs": {"regex": "a", "json_object": True}},
        {"structured_outputs": {"regex": "a"}, "guided_grammar": 'start: "a"'},
    ],
)
def test_two_constraints_at_once_are_refused(fields):
    assert "cannot be combined" in refused(**fields).message


def test_white_space_is_free_within_bounds():
    """Fault: a small model that may write white space can do so until its tokens are used up."""
    grammar = asked(response_format=json_schema(SCHEMA)).grammar
    for text in ('{"a":1}', '{"a": 1}', '{ "a" : 1 }', '{\n    "a": 1\n}', '{\n\t"a": 1\n}'):
        assert accepts(grammar, text), text
    for text in ('{"a":  1}', '{\n\n"a":1}', ' {"a":1}', '{"a":1}\n', '{"a":\n' + " " * 41 + "1}"):
        assert not accepts(grammar, text), text
    assert not accepts(asked(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}).grammar, '{"a": 1}')
    assert accepts(asked(structured_outputs={"json": SCHEMA, "whitespace_pattern": " *"}).grammar, '{"a":     1}')
    assert accepts(asked(guided_json=SCHEMA, guided_whitespace_pattern="_?").grammar, '{"a":_1}')


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5), st.integers())
@settings(max_examples=60, deadline=None)
def test_a_choice_is_one_of_the_texts_whatever_is_in_them(choice, seed):
    grammar = asked(guided_choice=choice).grammar
    tokens, ended = walk(GRAMMARS.start(grammar).result(), TOKENIZER, random.Random(seed))
    assert ended
    assert bytes(tokens).decode() in choice
    assert all(accepts(grammar, text) for text in choice)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_literal_is_its_text(text):
    assert accepts(f'start: {literal(text)} "!"', text + "!")


@pytest.mark.parametrize(
    ("regex", "right", "wrong"),
    [
        ("a/b", "a/b", "ab"),
        (r"a\/b", "a/b", "a\\/b"),
        ("a\nb", "a\nb", "anb"),
        (r"a\\/b", "a\\/b", "a/b"),
        ("^ab$", "ab", "xab"),
        ("a|bc", "bc", "ac"),
        ("[/]", "/", "x"),
        (r"\\", "\\", "/"),
        ("(?i)ab", "aB", "ac"),
        ("# c // d", "# c // d", ""),
    ],
)
def test_a_regular_expression_keeps_its_meaning(regex, right, wrong):
    assert accepts(f"start: {regex_term(regex)}", right)
    assert not accepts(f"start: {regex_term(regex)}", wrong)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "integer", "divisibleBy": 3}, "divisibleBy"),
        ({"properties": {"a": {"items": {"disallow": "string"}}}}, "disallow"),
        ({"anyOf": [{}, {"extends": {}}]}, "extends"),
        ({"properties": {"a": {"required": True}}}, "required"),
        ({"format": "date", "formatMinimum": "2020-01-01"}, "formatMinimum"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"$ref": "#/components/a~1b/0", "components": {"a/b": [{"extends": {}}]}}, "extends"),
        ({"allOf": [{"$ref": "#/definitions/a", "$id": "http://x/y"}], "definitions": {"a": {}}}, "$id"),
    ],
)
def test_keywords_that_would_be_left_out_are_refused_wherever_they_stand(schema, word):
    """Fault 50: never less constrained than asked."""
    with pytest.raises(UnsupportedParameter, match=word.replace("$", r"\$")) as caught:
        json_term(schema, "here")
    assert caught.value.param == "here"


def test_names_and_values_that_only_look_like_keywords_are_fine():
    schema = {
        "type": "object",
        "properties": {"extends": {"type": "string"}, "divisibleBy": {"const": {"disallow": 1}}},
        "required": ["extends"],
        "examples": [{"extends": 1}],
        "$defs": {"required": {"$ref": "#/$defs/required2"}, "required2": {}, "loop": {"$ref": "#/$defs/loop"}},
        "title": "a title",
        "unheardOf": "an annotation",
    }
    assert '"x-guidance"' in json_term(schema, "here")


def test_a_schema_that_is_no_object_is_one_all_the_same():
    assert accepts(f"start: {json_term(True, 'here')}", "[null]")
    with pytest.raises(InvalidRequest, match="not"):
        GRAMMARS.start(f"start: {json_term(False, 'here')}").result()
