"""POST /v1/embeddings over a scripted engine: its shapes, its errors, and the official client."""

import base64
from array import array
from contextlib import asynccontextmanager

import openai
import pytest

from lightwell.gateway.lengths import LengthLimits
from tests.gateway.fake_engine import BOS, DIMENSIONS, Script, make_client, make_gateway, vector_of


def ids_of(text: str) -> list[int]:
    return [BOS, *text.encode()]


def floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


async def ask(client, input, status: int = 200, **more) -> dict:
    response = await client.post("/v1/embeddings", json={"input": input} | more)
    assert response.status_code == status, response.text
    return response.json()


async def test_the_response_has_openais_shape(client, engine):
    answer = await ask(client, "Hi", model="alias", user="someone")
    vector = floats(vector_of(ids_of("Hi")))
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": vector}],
        "model": "alias",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    (request,) = engine.requests
    assert (request.pooling, request.max_tokens, request.salt) == ("last", 0, "user:local/")


@pytest.mark.parametrize(
    ("input", "tokens"),
    [
        ("Hi", [ids_of("Hi")]),
        (["Hi", "you all"], [ids_of("Hi"), ids_of("you all")]),
        ([72, 105], [[72, 105]]),
        ([[72, 105], [7]], [[72, 105], [7]]),
        (["Hi", [7]], [ids_of("Hi"), [7]]),
    ],
)
@pytest.mark.parametrize("form", ["float", "base64"])
async def test_every_input_has_its_vector_in_its_place(client, input, tokens, form):
    answer = await ask(client, input, encoding_format=form)
    found = [each["embedding"] for each in answer["data"]]
    vectors = [floats(base64.b64decode(each)) for each in found] if form == "base64" else found
    assert vectors == [floats(vector_of(each)) for each in tokens]
    assert [each["index"] for each in answer["data"]] == list(range(len(tokens)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, tokens))


async def test_the_official_client_reads_the_same_numbers(gateway):
    async with make_client(gateway) as http:
        api = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)
        for more in ({}, {"encoding_format": "float"}):  # by default it asks for base64, and decodes it
            answer = await api.embeddings.create(model="tiny", input=["Hi", "you"], **more)
            assert [each.embedding for each in answer.data] == [floats(vector_of(ids_of(t))) for t in ("Hi", "you")]
            assert answer.usage.total_tokens == 7
        answer = await api.embeddings.create(model="tiny", input="Hi", extra_body={"pooling": "mean"})
        assert len(answer.data[0].embedding) == DIMENSIONS


async def test_the_engine_is_told_how_to_pool_and_how_urgent_it_is(client, engine):
    await ask(client, ["a", "b"], pooling="mean", priority=3)
    assert [(request.pooling, request.priority) for request in engine.requests] == [("mean", 3)] * 2
    assert len({request.id for request in engine.requests}) == 2


@pytest.mark.parametrize(
    ("body", "param", "what"),
    [
        ({}, "input", "required"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "a list of texts"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": [[1], []]}, "input[1]", "empty"),
        ({"input": ["a", 1]}, "input", "a list of texts"),
        ({"input": [1, 999999]}, "input", "999999 is not in the vocabulary"),
        ({"input": [-1]}, "input", "-1 is not in the vocabulary"),
        ({"input": ["a"] * 2049}, "input", "2049 inputs: at most 2048"),
        ({"input": 5}, "input", "Expected"),
        ({"input": [True]}, "input[0]", "Expected"),
        ({"input": "a", "dimensions": DIMENSIONS - 1}, "dimensions", f"have {DIMENSIONS}"),
        ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "int8"),
        ({"input": "a", "pooling": "max"}, "pooling", "max"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"input": "a", "normalize": False}, "normalize", "not supported"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(client, engine, body, param, what):
    response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert what in error["message"]
    assert engine.requests == []


async def test_what_asks_for_nothing_is_accepted(client):
    await ask(client, "a", dimensions=DIMENSIONS, encoding_format=None, normalize=True, truncate_prompt_tokens=None)


async def test_an_input_that_does_not_fit_is_refused_with_the_numbers(client, engine):
    answer = await ask(client, ["short", "x" * 512], status=400)
    assert (answer["error"]["code"], answer["error"]["param"]) == ("context_length_exceeded", "input[1]")
    assert "513 tokens" in answer["error"]["message"]
    assert "512" in answer["error"]["message"]
    assert "max_tokens" not in answer["error"]["message"]
    assert engine.requests == []
    assert (await ask(client, "x" * 511))["usage"]["prompt_tokens"] == 512  # nothing is written after it


async def test_an_operators_bound_of_prompts_holds(engine):
    async with make_client(make_gateway(engine, lengths=LengthLimits(max_prompt=5))) as client:
        assert "at most 5" in (await ask(client, "123456", status=400))["error"]["message"]


async def test_unknown_models_and_parameters(client):
    assert (await ask(client, "a", status=404, model="other"))["error"]["code"] == "model_not_found"
    response = await client.post("/v1/embeddings", json={"input": "a", "inpt": "b"})
    assert "inpt" in response.headers["x-lightwell-warning"]


async def test_a_vector_that_is_not_finite_is_an_error_and_no_null(client, monkeypatch):
    monkeypatch.setattr("tests.gateway.fake_engine.vector_of", lambda tokens: array("f", [float("nan")] * 4).tobytes())
    assert "not finite" in (await ask(client, "a", status=500))["error"]["message"]


async def test_the_stages_stand_around_it(gateway):
    seen = []

    class Stage:
        @asynccontextmanager
        async def around(self, generation):
            generation.headers["x-stage"] = "here"
            yield
            seen.append((generation.api, generation.usage["prompt_tokens"], generation.usage["completion_tokens"]))

    gateway.stages.append(Stage())
    async with make_client(gateway) as client:
        response = await client.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert response.headers["x-stage"] == "here"
    assert seen == [("embeddings", 4, 0)]


async def test_a_long_list_leaves_room_for_others(client, engine):
    open_at_once = []
    engine.script = lambda request: open_at_once.append(len(engine.open)) or Script([0.0])
    answer = await ask(client, [str(n) for n in range(100)])
    assert [each["embedding"] for each in answer["data"]] == [floats(vector_of(ids_of(str(n)))) for n in range(100)]
    assert max(open_at_once) == 32


async def test_metrics_count_its_tokens(client):
    await ask(client, ["a", "b"])
    text = (await client.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("vllm:prompt_tokens_total"))
    assert list(lines.values()) == ["4.0"]
