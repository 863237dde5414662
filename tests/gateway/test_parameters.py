"""Every known parameter is served, accepted or refused; unknown ones are reported; errors name the parameter."""

import csv
import json

import pytest

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from lightwell.gateway.embeddings import read_embedding_body
from lightwell.gateway.parameters import ACCEPTED, REFUSED, WARNING_HEADER, read_body

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


def read(kind, body, **more):
    return read_body(json.dumps(body | more).encode(), kind)


def test_no_parameter_of_embeddings_is_unknown(shared):
    with (shared / "data/corpora/openai-api/request_params.csv").open() as file:
        names = {row["param"].split("[")[0] for row in csv.DictReader(file) if row["endpoint"] == "/embeddings"}
    assert {"input", "user"} <= names
    assert read_embedding_body(json.dumps(dict.fromkeys(names) | {"input": "hi"}).encode())[1] == {}


def refused(kind, body, **more) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(kind, body, **more)
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "kind", "body"), [("/chat/completions", ChatBody, CHAT), ("/completions", CompletionBody, COMPLETION)]
)
def test_no_parameter_of_the_openai_api_is_unknown(shared, endpoint, kind, body):
    """Fault 54. Read from the published specification; a value of null asks for nothing."""
    with (shared / "data/corpora/openai-api/request_params.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["endpoint"] == endpoint and row["in"] == "body"]
    names = {row["param"].split(".")[0].split("[")[0].split("<")[0] for row in rows}
    assert {"model", "stream", "seed"} <= names
    _, headers = read(kind, dict.fromkeys(names), **body)
    assert headers == {}


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize(("kind", "body"), [(ChatBody, CHAT), (CompletionBody, COMPLETION)])
def test_what_is_not_served_is_refused_by_name_and_its_defaults_are_fine(kind, body, name):
    for harmless in (None, *REFUSED[name]):
        _, headers = read(kind, body, **{name: harmless})
        assert headers == {}
    if name in kind.__struct_fields__:
        return  # served there
    error = refused(kind, body, **{name: {"type": "something else"}})
    assert isinstance(error, UnsupportedParameter)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("echo", True),
        ("echo", 1),
        ("best_of", 3),
        ("modalities", ["text", "audio"]),
        ("allowed_token_ids", []),
    ],
)
def test_values_near_a_default_are_not_taken_for_it(name, value):
    error = refused(ChatBody, CHAT, **{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_accepted_parameters_pass_without_a_warning(name):
    _, headers = read(ChatBody, CHAT, **{name: "anything"})
    assert headers == {}


def test_unknown_parameters_are_listed_wherever_they_stand():
    messages = [{"role": "user", "content": "hi", "mood": "good"}]
    _, headers = read(ChatBody, {"messages": messages}, foo=1, bar=None, stream_options={"baz": 1})
    assert headers == {WARNING_HEADER: "unknown parameters ignored: foo, bar, stream_options.baz, messages[0].mood"}


def test_names_of_unknown_parameters_cannot_break_the_header():
    _, headers = read(ChatBody, CHAT, **{"a\r\nset-cookie: x": 1, "ü" * 1000: 1}, **{f"p{n}": 1 for n in range(100)})
    value = headers[WARNING_HEADER]
    assert value.isascii()
    assert value.isprintable()
    assert len(value) < 1000
    assert value.endswith("and 82 more")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", -1),
        ("seed", 1.5),
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("max_completion_tokens", -1),
        ("stream", "yes"),
        ("stop", 3),
        ("stop", {}),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("stop_token_ids", "x"),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", "1"),
        ("repetition_penalty", 0),
        ("repetition_penalty", 101),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "x"}),
        ("min_tokens", -1),
        ("return_token_ids", 1),
        ("continue_final_message", "yes"),
        ("priority", 2**63),
        ("cache_salt", 7),
        ("chat_template_kwargs", []),
        ("stream_options", True),
        ("messages", []),
        ("messages", "hi"),
        ("model", 5),
    ],
)
def test_wrong_types_and_values_name_the_parameter(name, value):
    error = refused(ChatBody, CHAT, **{name: value})
    assert (error.status, error.type, error.code, error.param) == (400, "invalid_request_error", "invalid_value", name)
    assert name in error.message


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"content": "hi"}, "messages[0].role", "invalid_value"),
        ({"role": "robot", "content": "hi"}, "messages[0].role", "invalid_value"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_value"),
        ({"role": "function", "content": "4", "name": "f"}, "messages[0].role", "unsupported_parameter"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[0].tool_calls[0].id", "invalid_value"),
        (
            {"role": "assistant", "content": "", "function_call": {}},
            "messages[0].function_call",
            "unsupported_parameter",
        ),
        ("hi", "messages[0]", "invalid_value"),
    ],
)
def test_errors_inside_messages_name_the_place(message, param, code):
    error = refused(ChatBody, {"messages": [message]})
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'{"a": NaN}', b"[1]", b'"x"', b"null", b"[" * 100_000, b'{"a": "\\ud800"}']
)
def test_what_is_not_a_json_object_is_a_clear_400(data):
    with pytest.raises(InvalidRequest, match="JSON"):
        read_body(data, ChatBody)


@pytest.mark.parametrize(
    ("kind", "missing"), [(ChatBody, "messages"), (CompletionBody, "prompt"), (DetokenizeBody, "tokens")]
)
def test_a_missing_parameter_is_named(kind, missing):
    error = refused(kind, {})
    assert error.param == missing
    assert "required" in error.message


def test_null_is_the_default_for_every_optional_parameter():
    optional = {name: None for name in ChatBody.__struct_fields__ if name != "messages"}
    body, _ = read(ChatBody, CHAT, **optional)
    assert body == read(ChatBody, CHAT)[0]
    body, _ = read(TokenizeBody, dict.fromkeys(TokenizeBody.__struct_fields__))
    assert body == TokenizeBody()
