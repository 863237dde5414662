"""Ollama's API as its programs use it: lines of JSON, the last with the counts."""

import json

import pytest

from tests.gateway.fake_engine import FakeEngine, says

QUESTION = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(context_tokens=2048)


def lines(response) -> list[dict]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize("name", ["tiny", "tiny:latest"])
async def test_a_chat_is_streamed_unless_asked_otherwise(client, engine, name):
    asked = {"model": name, "messages": QUESTION}
    *pieces, last = lines(await client.post("/api/chat", json=asked))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello world"
    assert not any(piece["done"] for piece in pieces)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert last["prompt_eval_count"] == len(engine.requests[-1].tokens)
    assert last["eval_count"] == len("Hello world") + 1
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] >= 0
    whole = (await client.post("/api/chat", json=asked | {"stream": False})).json()
    assert whole["message"] == {"role": "assistant", "content": "Hello world"}
    assert whole["model"] == name
    assert whole["done"] is True


async def test_generate_has_a_template_unless_raw(client, gateway, engine):
    tokenizer = gateway.models[0].tokenizer
    asked = {"model": "tiny", "prompt": "Once", "system": "Be brief.", "stream": False}
    assert (await client.post("/api/generate", json=asked)).json()["response"] == "Hello world"
    assert "system:Be brief." in tokenizer.decode(engine.requests[-1].tokens, skip_special=False)
    raw = {"model": "tiny", "prompt": "Once", "raw": True}
    *pieces, last = lines(await client.post("/api/generate", json=raw))
    assert "".join(piece["response"] for piece in pieces) == "Hello world"
    assert tokenizer.decode(engine.requests[-1].tokens, skip_special=False) == "<bos>Once"
    assert engine.requests[-1].max_tokens > 1000
    assert last["done"]


async def test_options_reach_the_engine(client, engine):
    options = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 7,
        "num_predict": 4,
        "num_ctx": 2048,
        "repeat_penalty": 1.5,
    }
    await client.post("/api/chat", json={"model": "tiny", "messages": QUESTION, "options": options})
    request = engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.9, 0.1)
    assert (sampling.seed, sampling.repetition_penalty, request.max_tokens) == (7, 1.5, 4)
    await client.post("/api/chat", json={"model": "tiny", "messages": QUESTION, "options": {"num_predict": -1}})
    assert engine.requests[-1].max_tokens > 1000


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {}}])
async def test_a_format_constrains_the_answer(client, engine, form):
    await client.post("/api/chat", json={"model": "tiny", "messages": QUESTION, "format": form})
    assert engine.requests[-1].grammar


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_come_whole_with_objects_as_arguments(client, gateway, engine, stream):
    engine.script = lambda request: says(CALL)
    asked = {"model": "tiny", "messages": QUESTION, "tools": [TOOL], "stream": stream}
    response = await client.post("/api/chat", json=asked)
    answers = lines(response) if stream else [response.json()]
    (message,) = [answer["message"] for answer in answers if answer["message"].get("tool_calls")]
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {}}
    bare = {"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]}
    history = [*QUESTION, bare, {"role": "tool", "content": "rain", "tool_name": "weather"}]
    engine.script = lambda request: says("It rains.")
    again = await client.post("/api/chat", json=asked | {"messages": history, "stream": False})
    assert again.json()["message"]["content"] == "It rains."
    assert "rain" in gateway.models[0].tokenizer.decode(engine.requests[-1].tokens)


@pytest.mark.parametrize(("path", "asked"), [("chat", {"messages": []}), ("generate", {"prompt": ""}), ("chat", {})])
async def test_without_a_prompt_the_model_is_loaded(client, engine, path, asked):
    answer = (await client.post(f"/api/{path}", json={"model": "tiny"} | asked)).json()
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert engine.requests == []


async def test_models_have_tags(client):
    models = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in models] == ["tiny:latest", "alias:latest"]
    assert all(len(model["digest"]) == 64 and model["size"] == 1000 for model in models)
    assert (await client.get("/api/version")).json()["version"]


@pytest.mark.parametrize(
    ("asked", "status", "what"),
    [
        ({"model": "other"}, 404, "other"),
        ({"messages": "Hi"}, 400, "messages"),
        ({"options": {"temperature": 9}}, 400, "options.temperature"),
        ({"options": {"num_ctx": 4096}}, 400, "holds 2048"),
        ({"think": True}, 400, "think"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "messages[0].images"),
        ({"format": "yaml"}, 400, "format"),
    ],
)
async def test_errors_are_a_text(client, asked, status, what):
    response = await client.post("/api/chat", json={"model": "tiny", "messages": QUESTION} | asked)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert what in response.json()["error"]
