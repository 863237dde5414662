"""What the operator allows of prompts and answers, and answers that were cut off because they looped."""

import json

import pytest

from lightwell.events import Finished
from lightwell.gateway.lengths import LengthLimits
from tests.gateway.fake_engine import FakeEngine, Script, make_client, make_gateway, sse

PROMPT = "twelve bytes"


async def ask(limits: LengthLimits, path: str = "/v1/completions", **body):
    engine = FakeEngine()
    body = {"prompt": PROMPT} | body if path == "/v1/completions" else body
    async with make_client(make_gateway(engine, lengths=limits)) as client:
        response = await client.post(path, json={"model": "tiny", **body})
    return response, engine.requests


async def test_a_prompt_above_the_limit_is_a_400_with_both_numbers():
    response, requests = await ask(LengthLimits(max_prompt=12))
    error = response.json()["error"]
    assert (response.status_code, error["param"], requests) == (400, "prompt", [])
    assert "13 tokens" in error["message"]
    assert "at most 12" in error["message"]
    response, _ = await ask(LengthLimits(max_prompt=13))
    assert response.status_code == 200


async def test_an_answer_above_the_cap_is_a_400_with_both_numbers():
    response, requests = await ask(LengthLimits(max_output=50), max_tokens=51)
    error = response.json()["error"]
    assert (response.status_code, error["param"], requests) == (400, "max_tokens", [])
    assert "51" in error["message"]
    assert "50" in error["message"]
    _, [request] = await ask(LengthLimits(max_output=50), max_tokens=50)
    assert request.max_tokens == 50


CHAT = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("limits", "chat", "completion"),
    [
        (LengthLimits(), None, 16),
        (LengthLimits(default_output=40), 40, 16),
        (LengthLimits(max_output=9), 9, 9),
        (LengthLimits(default_output=40, max_output=20), 20, 16),
    ],
)
async def test_answers_that_ask_for_no_length_get_the_default_within_the_cap(limits, chat, completion):
    _, [request] = await ask(limits, **CHAT)
    assert request.max_tokens == (chat or 512 - len(request.tokens))
    _, [request] = await ask(limits)
    assert request.max_tokens == completion


class LoopingEngine(FakeEngine):
    def _finished(self, request, script, end, produced):
        return Finished(0.0, request.id, "length", len(request.tokens), 0, produced, "repetition")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_looped_says_so(path: str, stream: bool):
    body = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": CHAT["messages"]}
    engine = LoopingEngine(lambda request: Script(b"ha ha ha "))
    async with make_client(make_gateway(engine)) as client:
        response = await client.post(path, json={"model": "tiny", "max_tokens": 30, "stream": stream, **body})
    if stream:
        choices = [json.loads(data)["choices"][0] for data in sse(response.text)[:-1]]
        assert all("finish_details" not in choice for choice in choices[:-1])
        [choice] = choices[-1:]
    else:
        [choice] = response.json()["choices"]
    assert (choice["finish_reason"], choice["finish_details"]) == ("length", {"type": "repetition"})


async def test_an_answer_that_did_not_loop_has_no_details():
    response, _ = await ask(LengthLimits())
    assert "finish_details" not in response.json()["choices"][0]
