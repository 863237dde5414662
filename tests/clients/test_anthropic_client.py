"""The shared scenario by Anthropic's client, and what only their API has."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.clients.conftest import Served
from tests.clients.scenario import QUESTION, SCENARIO, Client, Told, waits_out_a_limit

pytestmark = pytest.mark.slow


class Messages(Client):
    errors = anthropic

    def connected(self, address, key, retries) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=address, api_key=key, max_retries=retries)

    def ask(self, turns, *, system="", most=16, **options: Any) -> Told:
        extra = {"temperature": options.pop("temperature", 0)}  # which this library has no argument for any more
        answer = self.library.messages.create(**self._asked(turns, system, most) | options, extra_body=extra)
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
        end = "length" if answer.stop_reason == "max_tokens" else "done"
        prompt = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        return Told(text, end, prompt, answer.usage.output_tokens, calls)

    def stream(self, turns, *, most=16) -> Iterator[str]:
        with self.library.messages.stream(**self._asked(turns, "", most), extra_body={"temperature": 0}) as stream:
            yield from stream.text_stream

    def call(self, turns, name, parameters) -> Told:
        tool = {"name": name, "input_schema": parameters}
        return self.ask(turns, most=60, tools=[tool], tool_choice={"type": "tool", "name": name})

    def structured(self, turns, schema) -> str:
        return self.ask(turns, most=80, output_config={"format": {"type": "json_schema", "schema": schema}}).text

    def _asked(self, turns, system, most) -> dict[str, Any]:
        messages = [{"role": role, "content": text} for role, text in turns]
        extra = {"system": system} if system else {}
        return {"model": "smollm2", "messages": messages, "max_tokens": most} | extra


@pytest.fixture
def client(served: Served) -> Messages:
    return Messages(served.address, served.key)


@pytest.mark.parametrize("part", SCENARIO, ids=lambda part: part.__name__)
def test_scenario(part, client):
    part(client)


def test_a_limit_is_waited_out(client, served):
    waits_out_a_limit(client, served.one_at_a_time)


def test_tokens_are_counted_as_they_are_billed(client):
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTION}]}
    counted = client.library.messages.count_tokens(**asked).input_tokens
    assert counted == client.ask([("user", QUESTION)]).prompt_tokens


def test_models(client):
    assert "smollm2" in [model.id for model in client.library.models.list()]
