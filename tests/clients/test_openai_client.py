"""The shared scenario by OpenAI's client, over chat and over responses, and what only OpenAI's API has."""

import base64
import io
import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.conftest import Served
from tests.clients.scenario import QUESTION, SCENARIO, Client, Told, waits_out_a_limit

pytestmark = pytest.mark.slow


class _OpenAI(Client):
    errors = openai

    def connected(self, address, key, retries) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=retries)


class Chat(_OpenAI):
    def ask(self, turns, *, system="", most=16, **options: Any) -> Told:
        answer = self.library.chat.completions.create(**self._asked(turns, system, most) | options)
        choice = answer.choices[0]
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
        end = "length" if choice.finish_reason == "length" else "done"
        usage = answer.usage
        return Told(choice.message.content or "", end, usage.prompt_tokens, usage.completion_tokens, calls)

    def stream(self, turns, *, most=16) -> Iterator[str]:
        for chunk in self.library.chat.completions.create(**self._asked(turns, "", most), stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    def call(self, turns, name, parameters) -> Told:
        tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
        return self.ask(turns, most=60, tools=[tool], tool_choice="required", parallel_tool_calls=False)

    def structured(self, turns, schema) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
        return self.ask(turns, most=80, response_format=form).text

    def _asked(self, turns, system, most) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": role, "content": text} for role, text in turns]
        return {"model": "smollm2", "messages": messages, "max_tokens": most, "temperature": 0}


class Responses(_OpenAI):
    def ask(self, turns, *, system="", most=16, **options: Any) -> Told:
        answer = self.library.responses.create(**self._asked(turns, system, most) | options)
        calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
        end = "length" if answer.status == "incomplete" else "done"
        return Told(answer.output_text, end, answer.usage.input_tokens, answer.usage.output_tokens, calls)

    def stream(self, turns, *, most=16) -> Iterator[str]:
        for event in self.library.responses.create(**self._asked(turns, "", most), stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta

    def call(self, turns, name, parameters) -> Told:
        tool = {"type": "function", "name": name, "parameters": parameters, "strict": True}
        return self.ask(turns, most=60, tools=[tool], tool_choice="required", parallel_tool_calls=False)

    def structured(self, turns, schema) -> str:
        form = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
        return self.ask(turns, most=80, text=form).text

    def _asked(self, turns, system, most) -> dict[str, Any]:
        items = [{"role": role, "content": text} for role, text in turns]
        extra = {"instructions": system} if system else {}
        return {"model": "smollm2", "input": items, "max_output_tokens": most, "temperature": 0} | extra


@pytest.fixture(params=[Chat, Responses])
def client(request, served: Served):
    return request.param(served.address, served.key)


@pytest.fixture
def library(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.key, max_retries=0)


@pytest.mark.parametrize("part", SCENARIO, ids=lambda part: part.__name__)
def test_scenario(part, client):
    part(client)


def test_a_limit_is_waited_out(client, served):
    waits_out_a_limit(client, served.one_at_a_time)


def test_responses_go_on_from_stored_ones(library):
    ask = {"model": "smollm2", "max_output_tokens": 12, "temperature": 0}
    first = library.responses.create(input=QUESTION, store=True, **ask)
    second = library.responses.create(input="And another one?", previous_response_id=first.id, store=True, **ask)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert library.responses.retrieve(second.id).output_text == second.output_text
    library.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        library.responses.retrieve(first.id)


def test_parsed_answers(library):
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    ask = {"model": "smollm2", "temperature": 0}
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    told = library.chat.completions.parse(messages=messages, response_format=Person, max_tokens=200, **ask)
    assert isinstance(told.choices[0].message.parsed, Person)


def test_embeddings_as_numbers_and_as_bytes(library):
    texts = ["a ship", "the sea"]
    whole = library.embeddings.create(model="smollm2", input=texts, encoding_format="float").data
    packed = library.embeddings.create(model="smollm2", input=texts, encoding_format="base64").data
    for numbers, text in zip(whole, packed, strict=True):
        raw = base64.b64decode(text.embedding)
        assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(numbers.embedding, abs=1e-6)


def test_a_batch_by_files(library):
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": f"Say {number}."}]},
        }
        for number in range(5)
    ]
    upload = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    file = library.files.create(file=("asks.jsonl", upload), purpose="batch")
    batch = library.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "expired") and time.monotonic() < deadline:
        time.sleep(0.2)
        batch = library.batches.retrieve(batch.id)
    assert batch.status == "completed"
    answers = [json.loads(line) for line in library.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in lines]
    assert library.files.delete(file.id).deleted


def test_completions_and_models(library):
    told = library.completions.create(model="smollm2", prompt=["Once", "Twice"], max_tokens=3, temperature=0)
    assert [choice.index for choice in told.choices] == [0, 1]
    assert "smollm2" in [model.id for model in library.models.list()]
    assert library.models.retrieve("smollm2").id == "smollm2"
