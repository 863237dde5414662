"""The official client's tool helpers against an engine that draws at random under the grammar of each request."""

import json
import random
from collections.abc import AsyncIterator
from typing import Literal

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionToolParam
from pydantic import BaseModel

from lightwell.engine.request import Request
from lightwell.gateway.app import create_app
from tests.gateway.fake_engine import FakeEngine, Script, make_gateway, says
from tests.gateway.tools.walking import WORDS, walk


class Place(BaseModel):
    city: str
    country: Literal["no", "se"]


class Forecast(BaseModel):
    """Tell the weather of the next days."""

    places: list[Place]
    days: int
    metric: bool = True


TOOL: ChatCompletionToolParam = openai.pydantic_function_tool(Forecast)
MESSAGES = [{"role": "user", "content": "How will the weather be?"}]


def obedient(request: Request) -> Script:
    """Random tokens under the request's grammar; without one, plain words."""
    return (
        Script(walk(request.grammar, WORDS[0], random.Random(request.sampling.seed)))
        if request.grammar
        else says("No.")
    )


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    app = create_app(make_gateway(FakeEngine(obedient, context_tokens=20_000)))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="unused", max_retries=0, http_client=http)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Forecast"}}])
async def test_parse_gives_the_arguments_as_their_model(client, choice):
    for seed in range(3):
        answer = await client.chat.completions.parse(
            model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice=choice, seed=seed
        )
        [choice_made] = answer.choices
        assert choice_made.finish_reason == "tool_calls"
        assert choice_made.message.content is None
        for call in choice_made.message.tool_calls:
            assert isinstance(call.function.parsed_arguments, Forecast)


async def test_stream_tells_arguments_as_they_grow(client):
    ask = {"model": "tiny", "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "seed": 5}
    async with client.chat.completions.stream(**ask) as stream:
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = await stream.get_final_completion()
    whole = await client.chat.completions.parse(**ask)
    calls = final.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == [
        call.function.arguments for call in whole.choices[0].message.tool_calls
    ]
    assert [event.arguments for event in done] == [call.function.arguments for call in calls]
    assert all(isinstance(call.function.parsed_arguments, Forecast) for call in calls)


async def test_a_conversation_goes_on_with_the_results(client):
    first = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice="required")
    message = first.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"rain": 1})} for call in message.tool_calls
    ]
    conversation = [*MESSAGES, message, *results]
    second = await client.chat.completions.create(model="tiny", messages=conversation, tools=[TOOL])
    assert second.choices[0].message.content == "No."
    assert second.choices[0].finish_reason == "stop"


async def test_one_call_where_more_are_not_wanted(client):
    for seed in range(5):
        answer = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=seed
        )
        assert len(answer.choices[0].message.tool_calls) == 1
