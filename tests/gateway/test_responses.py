"""The Responses API, as OpenAI's own client sees it: streamed or not the same, and kept only where it was asked for."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import openai
import pydantic
import pytest

from lightwell.gateway.app import create_app
from lightwell.gateway.caller import Caller
from lightwell.gateway.gateway import Gateway
from tests.gateway.fake_engine import FakeEngine, Script, make_client, says

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Say the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(context_tokens=2048)


@pytest.fixture
async def api(gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(create_app(gateway), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=client, max_retries=0)


def prompt(gateway: Gateway, engine: FakeEngine) -> str:
    return gateway.models[0].tokenizer.decode(engine.requests[-1].tokens, skip_special=False)


def comparable(response) -> dict:
    """Without what differs from one response to the next."""
    body = response if isinstance(response, dict) else response.to_dict()
    body = json.loads(json.dumps(body))
    for name in ("id", "created_at", "completed_at"):
        body.pop(name)
    for item in body["output"]:
        item.pop("id")
        item.pop("call_id", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
        item.pop("parsed_arguments", None)
    return body


async def test_a_text_is_answered_by_a_message(api, gateway, engine):
    response = await api.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert response.id.startswith("resp_")
    assert (response.status, response.output_text, response.store) == ("completed", "Hello world", False)
    assert [item.type for item in response.output] == ["message"]
    assert "system:Be brief." in prompt(gateway, engine)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(engine.requests[-1].tokens), 12)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.parametrize("answer", ["Hello world", CALL, f"Let me see. {CALL}", ""])
async def test_a_stream_joins_to_the_response(api, engine, answer):
    engine.script = lambda request: says(answer)
    asked = {"model": "tiny", "input": "Hi", "tools": [TOOL], "include": ["message.output_text.logprobs"]}
    whole = await api.responses.create(**asked)
    async with api.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert comparable(final) == comparable(whole)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    raw = [event async for event in await api.responses.create(stream=True, **asked)]
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    kinds = [event.type for event in raw]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(whole.output)
    texts = "".join(event.delta for event in raw if event.type == "response.output_text.delta")
    assert texts == whole.output_text
    for done in (event for event in raw if event.type == "response.function_call_arguments.done"):
        pieces = [
            e.delta for e in raw if e.type == "response.function_call_arguments.delta" and e.item_id == done.item_id
        ]
        assert "".join(pieces) == done.arguments


async def test_an_answer_that_is_cut_off_is_incomplete(api):
    asked = {"model": "tiny", "input": "Hi", "max_output_tokens": 3}
    response = await api.responses.create(**asked)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    events = [event async for event in await api.responses.create(stream=True, **asked)]
    assert events[-1].type == "response.incomplete"


async def test_a_tool_loop(api, gateway, engine):
    engine.script = lambda request: says(CALL)
    first = await api.responses.create(model="tiny", input="Hi", tools=[TOOL])
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Oslo"})
    engine.script = lambda request: says("It rains.")
    items = [
        {"role": "user", "content": "Hi"},
        *(item.to_dict() for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain, 8 degrees"},
    ]
    second = await api.responses.create(model="tiny", input=items, tools=[TOOL])
    assert second.output_text == "It rains."
    assert "rain, 8 degrees" in prompt(gateway, engine)


@pytest.mark.parametrize(
    ("choice", "forced"),
    [("auto", False), ("none", False), ("required", True), ({"type": "function", "name": "weather"}, True)],
)
async def test_a_choice_of_tools_constrains_the_answer(api, engine, choice, forced):
    engine.script = lambda request: says(CALL)
    await api.responses.create(model="tiny", input="Hi", tools=[TOOL], tool_choice=choice)
    assert bool(engine.requests[-1].grammar) == forced


async def test_a_form_is_parsed(api, engine):
    class Weather(pydantic.BaseModel):
        city: str

    engine.script = lambda request: says('{"city":"Oslo"}')
    response = await api.responses.parse(model="tiny", input="Hi", text_format=Weather)
    assert response.output_parsed == Weather(city="Oslo")
    assert engine.requests[-1].grammar


async def test_a_conversation_goes_on_from_what_is_kept(api, gateway, engine):
    engine.script = lambda request: says("I am Ann.")
    first = await api.responses.create(model="tiny", input="Who are you?", instructions="Be Ann.", store=True)
    second = await api.responses.create(model="tiny", input="Say it again.", previous_response_id=first.id, store=True)
    await api.responses.create(model="tiny", input="And again.", previous_response_id=second.id)
    seen = prompt(gateway, engine)
    order = [seen.index(text) for text in ("Who are you?", "I am Ann.", "Say it again.", "And again.")]
    assert order == sorted(order)
    assert seen.count("I am Ann.") == 2
    assert "Be Ann." not in seen  # instructions are not carried over
    kept = await api.responses.retrieve(second.id)
    assert comparable(kept) == comparable(second)
    items = await api.responses.input_items.list(second.id)
    assert [item.content[0].text for item in items.data] == ["Say it again."]
    await api.responses.delete(first.id)
    for gone in (api.responses.retrieve(first.id), api.responses.delete(first.id)):
        with pytest.raises(openai.NotFoundError):
            await gone
    with pytest.raises(openai.NotFoundError, match="store"):
        await api.responses.create(model="tiny", input="x", previous_response_id=second.id)


async def test_nothing_is_kept_unasked(api, gateway):
    response = await api.responses.create(model="tiny", input="Hi")
    assert gateway.store.is_new
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(response.id)


async def test_tenants_do_not_see_each_other(api, gateway, monkeypatch):
    response = await api.responses.create(model="tiny", input="Hi", store=True)
    monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key="k", user="other"))
    for path, method in (("", "GET"), ("/input_items", "GET"), ("", "DELETE"), ("/cancel", "POST")):
        async with make_client(gateway) as other:
            assert (await other.request(method, f"/v1/responses/{response.id}{path}")).status_code == 404
    with pytest.raises(openai.NotFoundError):
        await api.responses.create(model="tiny", input="Hi", previous_response_id=response.id)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_is_kept_can_be_cancelled(api, gateway, engine, stream):
    engine.script = lambda request: Script([*b"abc", 60.0])
    async with make_client(gateway) as client:
        body = {"model": "tiny", "input": "Hi", "store": True, "stream": stream}
        asking = asyncio.create_task(client.post("/v1/responses", json=body))
        while not engine.requests or engine.clock < 0.05:
            await asyncio.sleep(0.01)
        name = engine.requests[0].id
        while (await client.get(f"/v1/responses/{name}")).status_code == 404:
            await asyncio.sleep(0.01)
        cancelled = (await client.post(f"/v1/responses/{name}/cancel")).json()
        response = await asking
    assert cancelled["status"] == "cancelled"
    assert engine.open == set()
    last = json.loads(response.text.strip().split("data: ")[-1])["response"] if stream else response.json()
    assert last["status"] == "cancelled"
    assert last["output"][0]["content"][0]["text"] == "abc"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        await api.responses.cancel(name)


async def test_what_fails_is_kept_as_failed(gateway, engine, client):
    engine.script = lambda request: Script([*b"ab", RuntimeError("broken")])
    body = {"model": "tiny", "input": "Hi", "store": True, "stream": True}
    response = await client.post("/v1/responses", json=body)
    error = json.loads(response.text.strip().split("data: ")[-1])
    assert (error["type"], error["code"]) == ("error", "internal_error")
    kept = (await client.get(f"/v1/responses/{engine.requests[0].id}")).json()
    assert (kept["status"], kept["output"][0]["content"][0]["text"]) == ("failed", "ab")


async def test_input_tokens_are_counted_as_they_will_be_read(client, engine):
    asked = {"model": "tiny", "input": "Hi", "instructions": "Be brief.", "tools": [TOOL]}
    counted = (await client.post("/v1/responses/input_tokens", json=asked)).json()["input_tokens"]
    await client.post("/v1/responses", json=asked)
    assert counted == len(engine.requests[-1].tokens)


async def test_a_long_conversation_may_be_cut(client, gateway, engine):
    items = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n}" * 300} for n in range(9)]
    asked = {"model": "tiny", "input": items, "max_output_tokens": 50}
    assert (await client.post("/v1/responses", json=asked)).status_code == 400
    response = await client.post("/v1/responses", json=asked | {"truncation": "auto"})
    assert response.status_code == 200
    assert response.json()["context"]["dropped_messages"] > 0
    assert "8888" in prompt(gateway, engine)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "image_generation_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "middle"}, "truncation"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"model": "other"}, "model"),
    ],
)
async def test_what_is_wrong_is_named(client, engine, more, param):
    response = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"} | more)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
    assert engine.requests == []
