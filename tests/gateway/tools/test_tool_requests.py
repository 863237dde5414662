"""Chats with tools over the app: what reaches the engine, what reaches the client, streamed and whole."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.gateway.tools.hermes import Hermes
from lightwell.text.chat import ChatTemplate
from tests.gateway.fake_engine import EOS, FakeEngine, Script, make_client, make_gateway, says, sse

HI = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "time"}}
OSLO = ("weather", '{"place": "Oslo"}')
ANSWER = "Let me see.\n" + Hermes.written([OSLO, ("time", "{}")])
NATIVE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}<|turn|>{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|end|>{% endfor %}"
)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(lambda request: says(ANSWER), context_tokens=4096)


@pytest.fixture
async def client(engine) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(make_gateway(engine)) as client:
        yield client


async def chat(client, **body):
    return await client.post("/v1/chat/completions", json={"messages": HI, "tools": [WEATHER, TIME]} | body)


async def whole(client, **body) -> dict:
    response = await chat(client, **body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return choice


async def streamed(client, **body) -> tuple[dict, list[dict]]:
    """The choice put together from a stream as clients do, and its chunks."""
    response = await chat(client, stream=True, **body)
    *events, last = sse(response.text)
    assert last == "[DONE]"
    chunks = [choice for event in events for choice in json.loads(event)["choices"]]
    content, calls = "", {}
    for chunk in chunks:
        content += chunk["delta"].get("content", "")
        for more in chunk["delta"].get("tool_calls", []):
            if "id" in more:
                assert more["index"] not in calls
                calls[more["index"]] = {"id": more["id"], "type": more["type"], "function": dict(more["function"])}
            else:
                assert set(more) == {"index", "function"}
                assert set(more["function"]) == {"arguments"}
                calls[more["index"]]["function"]["arguments"] += more["function"]["arguments"]
    message = {"role": chunks[0]["delta"]["role"], "content": content or None, "refusal": None}
    reasons = [chunk["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    if calls:
        message["tool_calls"] = [calls[index] for index in range(len(calls))]
    ending = {"finish_reason": reasons[-1], "stop_reason": chunks[-1]["stop_reason"]}
    return {"index": 0, "message": message, "logprobs": None, **ending}, chunks


def called(choice: dict) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def without_ids(choice: dict) -> dict:
    calls = [{**call, "id": ""} for call in choice["message"].get("tool_calls", [])]
    return {**choice, "message": {**choice["message"], "tool_calls": calls}}


def error(response, param: str, code: str = "invalid_value") -> str:
    assert response.status_code == 400, response.text
    found = response.json()["error"]
    assert (found["param"], found["code"]) == (param, code), found
    return found["message"]


async def test_calls_are_told_apart_from_the_text(client):
    """Fault 47."""
    choice = await whole(client)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert called(choice) == [OSLO, ("time", "{}")]
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(name.startswith("call_") for name in ids)


async def test_a_stream_tells_each_call_once_and_then_its_arguments(client):
    choice, chunks = await streamed(client)
    assert without_ids(choice) == without_ids(await whole(client))
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["delta"] == {}


async def test_nothing_but_calls_has_no_content(engine, client):
    engine.script = lambda request: says(Hermes.written([OSLO]))
    assert (await whole(client))["message"]["content"] is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<tool_call>", '{"name": "weather", "arguments": {"a": [1', "]}}", "</tool_call>", "x\n"])
    ),
    st.integers(1, 120),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
async def test_a_stream_equals_the_answer_at_once_for_any_text_and_length(pieces, length, parallel, pauses):
    """Faults 45 and 47: whatever the model writes, and wherever it is cut off."""
    steps = [step for byte in "".join(pieces).encode() for step in ((0.0, byte) if pauses else (byte,))]
    engine = FakeEngine(lambda request: Script([*steps, EOS]), context_tokens=4096)
    async with make_client(make_gateway(engine)) as client:
        ask = {"max_tokens": length, "parallel_tool_calls": parallel}
        choice = await whole(client, **ask)
        parts, _ = await streamed(client, **ask)
    parts["message"]["content"] = parts["message"]["content"] or ("" if not called(choice) else None)
    assert without_ids(parts) == without_ids(choice)
    if choice["finish_reason"] == "tool_calls":
        assert called(choice)
        json.loads(called(choice)[0][1])
    if parallel is False:
        assert len(called(choice)) <= 1 or choice["finish_reason"] != "tool_calls"


@pytest.mark.parametrize("length", range(1, len(ANSWER) + 1, 7))
async def test_length_wins_over_tool_calls(client, length):
    """Fault 45."""
    choice, _ = await streamed(client, max_tokens=length)
    assert choice["finish_reason"] == "length"
    assert (await whole(client, max_tokens=length))["finish_reason"] == "length"


async def test_a_call_that_is_cut_off_is_a_partial_one(client):
    cut = ANSWER.index("Oslo") + 2
    choice = await whole(client, max_tokens=cut)
    assert called(choice) == [("weather", '{"place": "Os')]
    assert choice["finish_reason"] == "length"


async def test_one_call_at_most_ends_the_answer_after_it(client, engine):
    engine.script = lambda request: Script([step for byte in ANSWER.encode() for step in (0.0, byte)])
    for choice in (
        await whole(client, parallel_tool_calls=False),
        (await streamed(client, parallel_tool_calls=False))[0],
    ):
        assert called(choice) == [OSLO]
        assert choice["finish_reason"] == "tool_calls"
    assert engine.aborted == [request.id for request in engine.requests]
    assert engine.open == set()


async def test_without_tools_or_with_none_wanted_calls_are_text(client, engine):
    for ask in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        choice = await whole(client, **ask)
        assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert b"weather" not in bytes(token for token in engine.requests[-1].tokens if token < 256)


async def test_tools_reach_a_template_that_does_not_know_them_in_words(client, engine):
    await chat(client)
    prompt = bytes(token for token in engine.requests[0].tokens if token < 256).decode()
    assert prompt.startswith("system:# Tools")
    assert json.dumps(WEATHER["function"]) in prompt
    assert '{"name": "time", "parameters": {"type": "object", "properties": {}' in prompt


async def test_tools_and_calls_go_through_a_template_that_knows_them(engine):
    gateway = make_gateway(engine)
    gateway.models[0].template = ChatTemplate(NATIVE)
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"place":"Oslo"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    async with make_client(gateway) as client:
        await chat(client, messages=messages, tools=[WEATHER])
        counted = (await client.post("/tokenize", json={"messages": messages, "tools": [WEATHER]})).json()
    prompt = bytes(token for token in engine.requests[0].tokens if token < 256).decode()
    assert prompt == (
        json.dumps(WEATHER) + "user:Weather?assistant:"
        '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>tool:rain'
    )
    assert counted["tokens"] == engine.requests[0].tokens


async def test_a_forced_call_is_held_to_a_grammar_and_a_free_one_is_not(client, engine):
    for choice in ("auto", None):
        await chat(client, tool_choice=choice)
        assert engine.requests[-1].grammar == ""
    await chat(client, tool_choice="required")
    both = engine.requests[-1].grammar
    assert "weather" in both
    assert "time" in both
    await chat(client, tool_choice={"type": "function", "function": {"name": "time"}})
    assert "weather" not in engine.requests[-1].grammar


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]", "invalid_value"),
        ({"tools": [WEATHER, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name", None),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", None),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported_parameter"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
            "tools[0].function.parameters",
            None,
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            None,
        ),
        ({"tools": 5}, "tools", None),
        ({"tools": None, "tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "sometimes"}, "tool_choice", None),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice", None),
        ({"tool_choice": {"type": "function"}}, "tool_choice", None),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice", "unsupported_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", None),
        (
            {
                "continue_final_message": True,
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}
                ],
            },
            "continue_final_message",
            None,
        ),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", None),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].tool_call_id", None),
        ({"messages": [{"role": "user", "content": "4", "tool_call_id": "x"}]}, "messages[0].tool_call_id", None),
        (
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
            None,
        ),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ],
)
async def test_what_is_wrong_is_said_by_its_place(client, engine, body, param, code):
    error(await chat(client, **body), param, code or "invalid_value")
    assert engine.requests == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "foo"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
        {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": "x" * 99} for n in range(800)}},
    ],
)
async def test_a_schema_that_cannot_constrain_a_call_is_an_error_of_its_request_alone(client, engine, schema):
    """Faults 48 and 50: nothing runs unconstrained when a constraint was asked for."""
    bad = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    message = error(await chat(client, tools=[WEATHER, bad], tool_choice="required"), "tools[1].function.parameters")
    assert len(message) < 400
    assert engine.requests == []
    assert (await chat(client, tool_choice="required")).status_code == 200


async def test_each_of_several_choices_has_its_own_calls(client):
    response = (await chat(client, n=2)).json()
    ids = [[call["id"] for call in choice["message"]["tool_calls"]] for choice in response["choices"]]
    assert [called(choice) for choice in response["choices"]] == [[OSLO, ("time", "{}")]] * 2
    assert len({name for choice in ids for name in choice}) == 4


async def test_logprobs_go_with_the_tokens_of_calls_too(client):
    choice = await whole(client, logprobs=True)
    assert len(choice["logprobs"]["content"]) == len(ANSWER)
