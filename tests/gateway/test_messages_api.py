"""The Messages API, as Anthropic's own client sees it and byte by byte where that says less."""

import json
from collections.abc import AsyncIterator

import anthropic
import httpx2
import pytest

from lightwell.gateway.app import create_app
from lightwell.gateway.gateway import Gateway
from tests.gateway.fake_engine import FakeEngine, Script, make_gateway, says

TOOL = {
    "name": "weather",
    "description": "Say the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(context_tokens=2048)


@pytest.fixture
async def api(gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    transport = httpx2.ASGITransport(create_app(gateway), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", http_client=client, max_retries=0)


def prompt(gateway: Gateway, engine: FakeEngine) -> str:
    return gateway.models[0].tokenizer.decode(engine.requests[-1].tokens, skip_special=False)


async def test_an_answer_has_blocks_and_a_reason(api, engine):
    message = await api.messages.create(model="tiny", max_tokens=50, messages=QUESTION, system="Be brief.")
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello world"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == len(engine.requests[-1].tokens)
    assert message.usage.output_tokens == len("Hello world") + 1


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [({"max_tokens": 3}, "max_tokens", None), ({"stop_sequences": ["wor"]}, "stop_sequence", "wor")],
)
async def test_reasons_are_theirs(api, more, reason, sequence):
    message = await api.messages.create(**{"model": "tiny", "max_tokens": 50, "messages": QUESTION} | more)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


async def test_cached_tokens_are_counted_apart(api, engine):
    engine.script = lambda request: says("x", cached_tokens=5)
    message = await api.messages.create(model="tiny", max_tokens=50, messages=QUESTION)
    assert message.usage.cache_read_input_tokens == 5
    assert message.usage.input_tokens == len(engine.requests[-1].tokens) - 5


@pytest.mark.parametrize("answer", ["Hello world", CALL, f"Let me see. {CALL}", ""])
async def test_a_stream_joins_to_the_answer(api, engine, answer):
    engine.script = lambda request: says(answer, cached_tokens=3)
    asked = {"model": "tiny", "max_tokens": 200, "messages": QUESTION, "tools": [TOOL]}
    whole = await api.messages.create(**asked)
    async with api.messages.stream(**asked) as stream:
        events = [event.type async for event in stream]
        joined = await stream.get_final_message()
    told = [message.to_dict() | {"id": "", "stop_details": None} for message in (whole, joined)]
    for message in told:
        for block in message["content"]:
            block.pop("id", None)
            block.pop("parsed_output", None)
    assert told[0] == told[1]
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert events.count("content_block_start") == events.count("content_block_stop") == len(whole.content)


async def test_a_tool_loop(api, gateway, engine):
    engine.script = lambda request: says(CALL)
    asked = {"model": "tiny", "max_tokens": 200, "tools": [TOOL]}
    first = await api.messages.create(messages=QUESTION, **asked)
    (call,) = first.content
    assert (first.stop_reason, call.type, call.name, call.input) == (
        "tool_use",
        "tool_use",
        "weather",
        {"city": "Oslo"},
    )
    engine.script = lambda request: says("It rains.")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain, 8 degrees"}]}
    again = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await api.messages.create(messages=again, **asked)
    assert second.content[0].text == "It rains."
    assert "rain, 8 degrees" in prompt(gateway, engine)
    assert "Oslo" in prompt(gateway, engine)


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "weather"}, True),
    ],
)
async def test_a_choice_of_tools_constrains_the_answer(api, engine, choice, forced):
    engine.script = lambda request: says(CALL)
    await api.messages.create(model="tiny", max_tokens=200, messages=QUESTION, tools=[TOOL], tool_choice=choice)
    assert bool(engine.requests[-1].grammar) == forced


async def test_a_schema_constrains_the_answer(api, engine):
    form = {"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}
    engine.script = lambda request: says('{"city":"Oslo"}')
    await api.messages.create(model="tiny", max_tokens=99, messages=QUESTION, output_config=form)
    assert engine.requests[-1].grammar


async def test_a_last_turn_of_the_assistant_is_gone_on_with(api, gateway, engine):
    turns = [*QUESTION, {"role": "assistant", "content": "The answer is"}]
    await api.messages.create(model="tiny", max_tokens=9, messages=turns)
    assert prompt(gateway, engine).endswith("The answer is")


async def test_tokens_are_counted_as_they_will_be_read(api, engine):
    asked = {"model": "tiny", "messages": QUESTION, "system": [{"type": "text", "text": "Be brief."}], "tools": [TOOL]}
    counted = await api.messages.count_tokens(**asked)
    await api.messages.create(max_tokens=9, **asked)
    assert counted.input_tokens == len(engine.requests[-1].tokens)


async def test_models_are_listed_in_their_shape(api):
    models = [model async for model in api.models.list()]
    assert [(model.id, model.type) for model in models] == [("tiny", "model"), ("alias", "model")]
    assert (await api.models.retrieve("alias")).max_input_tokens == 2048


@pytest.mark.parametrize(
    ("more", "error", "says_what"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "other"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"max_tokens": 5000}, anthropic.BadRequestError, "2048"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, anthropic.BadRequestError, "thinking"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError, "content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, anthropic.BadRequestError, "content[0].text"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, anthropic.BadRequestError, "tools[0]"),
        ({"tool_choice": {"type": "some"}, "tools": [TOOL]}, anthropic.BadRequestError, "tool_choice.type"),
        ({"output_config": {"effort": "high"}}, anthropic.BadRequestError, "output_config.effort"),
    ],
)
async def test_errors_are_theirs(api, engine, more, error, says_what):
    asked = {"model": "tiny", "max_tokens": 50, "messages": QUESTION} | more
    with pytest.raises(error) as caught:
        await api.messages.create(**asked)
    assert caught.value.body["type"] == "error"
    assert says_what in caught.value.body["error"]["message"]
    assert engine.requests == []


async def test_an_error_in_the_middle_of_a_stream_is_an_event(client, engine):
    engine.script = lambda request: Script([97, RuntimeError("broken")])
    body = {"model": "tiny", "max_tokens": 50, "messages": QUESTION, "stream": True}
    response = await client.post("/v1/messages", json=body)
    kind, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"


async def test_a_busy_server_says_so_in_their_words():
    engine = FakeEngine()
    gateway = make_gateway(engine)
    gateway.drain.begin()
    transport = httpx2.ASGITransport(create_app(gateway))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"model": "tiny", "max_tokens": 5, "messages": QUESTION}
        response = await client.post("/v1/messages", json=body)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.headers["retry-after"]
