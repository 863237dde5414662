"""Tool calls of a real model on a real server, with the official client."""

from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.system.test_server import server


class Weather(BaseModel):
    """Tell the weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Reminder(BaseModel):
    """Remind the user later."""

    minutes: int
    text: str


TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Reminder)]
MESSAGES = [{"role": "user", "content": "What is the weather like in Oslo?"}]


@pytest.fixture(scope="module")
def client(smollm2, tmp_path_factory):
    with server(str(smollm2), "--served-model-name", "smollm2", log=tmp_path_factory.mktemp("log") / "log") as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_named_function_is_called_with_arguments_that_fit(client, temperature):
    answer = client.chat.completions.parse(
        model="smollm2",
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "Weather"}},
        temperature=temperature,
        seed=1,
    )
    [call] = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


@pytest.mark.slow
def test_a_required_call_streams_what_it_answers_at_once(client):
    ask = {
        "model": "smollm2",
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.8,
        "seed": 3,
    }
    whole = client.chat.completions.parse(**ask)
    with client.chat.completions.stream(**ask) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    [call], [streamed] = whole.choices[0].message.tool_calls, final.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    assert isinstance(streamed.function.parsed_arguments, Weather | Reminder)
    assert "".join(piece.arguments_delta for piece in pieces) == call.function.arguments
    assert len(pieces) > 1
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.slow
def test_a_forced_call_that_is_cut_off_ends_for_its_length(client):
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=6, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
