"""The form of an answer: which grammar reaches the engine, and what is refused by name."""

import json

import pytest

from lightwell.sampling.grammar import Grammars
from tests.gateway.fake_engine import says
from tests.sampling.walks import mask

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
ASK = {"messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
JSON_TEXT, JSON_WRONG = '{"a": 1}', '{"b": 1}'


def json_schema(schema: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


FORMS = [
    ({"response_format": {"type": "json_object"}}, JSON_WRONG, "[1]"),
    ({"response_format": json_schema(SCHEMA)}, JSON_TEXT, JSON_WRONG),
    ({"structured_outputs": {"json": SCHEMA}}, JSON_TEXT, JSON_WRONG),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON_TEXT, JSON_WRONG),
    ({"structured_outputs": {"json_object": True}}, JSON_WRONG, "7"),
    ({"structured_outputs": {"regex": "[0-9]+kg"}}, "70kg", "70"),
    ({"structured_outputs": {"choice": ["yes", 'the "other"']}}, 'the "other"', "no"),
    ({"structured_outputs": {"grammar": 'start: "x" /y+/\n'}}, "xyy", "x"),
    ({"guided_json": SCHEMA}, JSON_TEXT, JSON_WRONG),
    ({"guided_regex": "a|b"}, "a", "c"),
    ({"guided_choice": ["a", "b"]}, "b", "c"),
    ({"guided_grammar": 'start: "q"\n'}, "q", "r"),
]


def accepts(grammar: str, text: str, tokenizer) -> bool:
    matcher = Grammars(lambda: tokenizer).start(grammar).result()
    matcher.advance(tokenizer.encode(text, special=False))
    return not matcher.error and bool(set(mask(matcher, tokenizer.vocab_size)) & tokenizer.stop_ids)


@pytest.mark.parametrize(("form", "fits", "fails"), FORMS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_every_form_reaches_the_engine_as_a_grammar(client, engine, gateway, form, fits, fails, path):
    engine.script = lambda request: says("x")
    body = form | (ASK if path.startswith("chat") else {"prompt": "Hi"})
    assert (await client.post(f"/v1/{path}", json=body)).status_code == 200
    [request] = engine.requests
    assert accepts(request.grammar, fits, gateway.models[0].tokenizer)
    assert not accepts(request.grammar, fails, gateway.models[0].tokenizer)


@pytest.mark.parametrize("form", [{}, {"response_format": {"type": "text"}}])
async def test_without_a_form_the_answer_is_free(client, engine, form):
    engine.script = lambda request: says("x")
    await client.post("/v1/chat/completions", json=ASK | form)
    assert engine.requests[0].grammar == ""


DEEP = json.loads('{"items":' * 60 + '{"uniqueItems": true}' + "}" * 60)
SCHEMA_PLACE = "response_format.json_schema.schema"
REFUSED = [
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {}}, None, "type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": json_schema({"type": "nonsense"})}, SCHEMA_PLACE, "nonsense"),
    ({"response_format": json_schema({"type": "array", "uniqueItems": True})}, SCHEMA_PLACE, "uniqueItems"),
    ({"response_format": json_schema(DEEP)}, SCHEMA_PLACE, "uniqueItems"),
    ({"response_format": json_schema({"$ref": "http://example.com/s"})}, SCHEMA_PLACE, "example.com"),
    ({"response_format": json_schema({"type": "integer", "divisibleBy": 3})}, SCHEMA_PLACE, "divisibleBy"),
    ({"guided_json": {"items": {"multipleOf": 999983}}}, "guided_json", "takes more than"),
    ({"guided_json": "{"}, "guided_json", "JSON schema"),
    ({"guided_json": {"properties": {"a": {"anyOf": [{"disallow": "string"}]}}}}, "guided_json", "disallow"),
    ({"guided_json": {"x-guidance": {"lenient": True}, "not": {}}}, "guided_json", "x-guidance"),
    ({"guided_json": {"enum": ["x" * 70000]}}, "guided_json", "65536"),
    ({"guided_regex": "("}, "guided_regex", "regex"),
    ({"guided_regex": "a(?=b)"}, "guided_regex", "regex"),
    ({"guided_regex": "(" * 20000 + "a" + ")" * 20000}, "guided_regex", ""),
    ({"guided_choice": []}, "guided_choice", "nothing to choose"),
    ({"guided_grammar": "start: missing\n"}, "guided_grammar", "missing"),
    ({"guided_grammar": 'root ::= "x"\n'}, "guided_grammar", "Lark"),
    ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
    ({"structured_outputs": {"xml": 1}}, None, "xml"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "one constraint"),
    ({"guided_regex": "a", "tools": TOOLS}, "tools", "response_format"),
]


@pytest.mark.parametrize(("form", "param", "says_what"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_followed_is_a_400_that_names_it(client, engine, form, param, says_what):
    """Public reports: vllm#43920, vllm PR#44401, TGI#2280 (a malformed schema takes the engine down), omlx PR#1571 (a
    bad schema is answered with free text)."""
    answer = await client.post("/v1/chat/completions", json=ASK | form)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert param is None or error["param"] == param
    assert says_what in error["message"]
    assert engine.requests == []


async def test_with_tools_the_answer_has_its_form_or_is_a_call(client, engine, gateway):
    engine.script = lambda request: says("x")
    await client.post("/v1/chat/completions", json=ASK | {"response_format": json_schema(SCHEMA), "tools": TOOLS})
    [request] = engine.requests
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    assert accepts(request.grammar, JSON_TEXT, gateway.models[0].tokenizer)
    assert accepts(request.grammar, call, gateway.models[0].tokenizer)
    assert not accepts(request.grammar, JSON_WRONG, gateway.models[0].tokenizer)
