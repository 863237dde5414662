"""Models, tokenize, health, metrics, headers and errors of the app itself."""

import asyncio

import msgspec
import pytest

from lightwell.errors import EngineDied
from lightwell.gateway.parameters import WARNING_HEADER
from lightwell.host.client import EngineStatus
from tests.gateway.fake_engine import BOS, EOS, TURN, FakeEngine, Script, make_client, make_gateway
from tests.gateway.test_generation_api import HI, chat, complete, error

READY = ("/health", "/readyz")


async def test_models_are_listed_with_their_window(client):
    models = (await client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["tiny", "alias"]
    assert {model["max_model_len"] for model in models["data"]} == {512}
    assert (await client.get("/v1/models/alias")).json() == models["data"][1]
    assert models["data"][0]["meta"] == {
        "chat": True,
        "tool_call_parser": "hermes",
        "weight_bytes": 1000,
        "workspace_bytes": 0,
        "kv_bytes": 0,
        "kv_blocks": 1000,
        "block_tokens": 32,
        "details": {"isa": "portable"},
    }
    assert error(await client.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


async def test_a_model_without_a_template_says_that_it_has_no_chat():
    async with make_client(make_gateway(FakeEngine(), chat=False)) as client:
        assert (await client.get("/v1/models/tiny")).json()["meta"]["chat"] is False


async def test_a_model_named_with_a_slash_can_be_asked_for(gateway):
    gateway.models[0].names = ["org/tiny"]
    async with make_client(gateway) as client:
        assert (await client.get("/v1/models/org/tiny")).json()["id"] == "org/tiny"


async def test_tokenize_and_detokenize_are_inverse(client):
    answer = (await client.post("/tokenize", json={"prompt": "hé<eos>", "return_token_strs": True})).json()
    assert answer == {
        "count": 5,
        "max_model_len": 512,
        "tokens": [BOS, *"hé".encode(), EOS],
        "token_strs": ["<bos>", "h", r"bytes:\xc3", r"bytes:\xa9", "<eos>"],
    }
    back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "<bos>hé<eos>"}
    plain = await client.post("/tokenize", json={"model": "tiny", "prompt": "hé", "add_special_tokens": False})
    assert plain.json()["tokens"] == [*"hé".encode()]


async def test_tokenize_takes_messages(client, engine):
    answer = (await client.post("/tokenize", json={"messages": HI})).json()
    await chat(client)
    assert answer["tokens"] == engine.requests[0].tokens
    shorter = (await client.post("/tokenize", json={"messages": HI, "add_generation_prompt": False})).json()
    assert shorter["tokens"] == answer["tokens"][: shorter["count"]]
    assert answer["tokens"][shorter["count"]] == TURN


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_tokenize_and_detokenize_refuse_what_is_wrong(client, path, body, param):
    assert error(await client.post(path, json=body), 400)["param"] == param


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_tokenizing_is_for_the_served_model(client, path, body):
    assert (await client.post(path, json=body | {"model": "alias"})).status_code == 200
    assert error(await client.post(path, json=body | {"model": "other"}), 404)["code"] == "model_not_found"


# Health.


@pytest.mark.parametrize("path", READY)
async def test_ready_means_loaded_and_making_progress(client, engine, path):
    assert (await client.get(path)).json() == {
        "status": "ok",
        "phase": "ready",
        "running": 0,
        "waiting": 0,
        "queued": 0,
        "last_step_age_seconds": 0.0,
    }
    engine.status = EngineStatus("ready", running=3, waiting=2, last_step_age=29.0)
    assert (await client.get(path)).status_code == 200
    engine.status = EngineStatus("ready", running=3, waiting=2, last_step_age=31.0)
    stalled = await client.get(path)
    assert stalled.status_code == 503
    assert (stalled.json()["status"], stalled.json()["running"]) == ("stalled", 3)


async def test_a_restarting_engine_is_said_so_and_waited_for(client, engine):
    """Survival: it is back within seconds, and the request would only come again."""
    engine.status = EngineStatus("restarting", waiting=4)
    for path in READY:
        response = await client.get(path)
        health = response.json()
        assert (response.status_code, health["status"], health["waiting"]) == (503, "restarting", 4)
    for send in (chat, complete):
        assert (await send(client)).status_code == 200


@pytest.mark.parametrize("phase", ["loading", "stopped"])
async def test_an_engine_that_is_not_ready_is_said_so_and_gets_no_work(client, engine, phase):
    engine.status = EngineStatus(phase)
    for path in READY:
        response = await client.get(path)
        assert (response.status_code, response.json()["status"], response.json()["phase"]) == (503, phase, phase)
    assert (await client.get("/livez")).status_code == 200
    for send in (chat, complete):
        response = await send(client)
        answer = error(response, 503)
        assert (answer["type"], answer["code"]) == ("unavailable_error", "overloaded")
        assert phase in answer["message"]
        assert int(response.headers["retry-after"]) >= 1
    assert engine.requests == []


async def test_a_loading_engine_has_no_window_yet(client, engine):
    engine.status = EngineStatus("loading")
    assert error(await client.get("/v1/models"), 503)["code"] == "overloaded"


async def test_draining_refuses_new_work_and_lets_the_open_finish(gateway, client, engine):
    """Fault 65, without the signal."""
    release = asyncio.Event()
    engine.script = lambda request: Script([72, release.wait(), 105, EOS])
    running = asyncio.create_task(chat(client))
    while not engine.open:
        await asyncio.sleep(0)
    gateway.drain.begin()
    for path in READY:
        response = await client.get(path)
        assert (response.status_code, response.json()["status"]) == (503, "draining")
    for send in (chat, complete):
        response = await send(client)
        assert error(response, 503)["code"] == "overloaded"
        assert "retry-after" in response.headers
    assert not await gateway.drain.drained(0.01)
    release.set()
    assert (await running).json()["choices"][0]["message"]["content"] == "Hi"
    assert await gateway.drain.drained(0.01)
    assert gateway.drain.open == 0


# Headers and errors.


async def test_every_response_has_an_id_and_its_time(client, engine):
    engine.script = lambda request: Script([EngineDied("gone")])
    responses = [
        await client.get("/health"),
        await client.get("/nowhere"),
        await client.get("/v1/completions"),
        await client.post("/v1/completions", content="{"),
        await complete(client),
        await complete(client, stream=True),
        await client.get("/metrics"),
    ]
    assert [response.status_code for response in responses] == [200, 404, 405, 400, 503, 503, 200]
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == len(responses)
    for response in responses:
        assert response.headers["openai-version"]
        assert int(response.headers["openai-processing-ms"]) >= 0


async def test_a_sane_id_of_the_client_is_kept_and_any_other_is_replaced(client):
    async def id_for(asked: bytes) -> str:
        return (await client.get("/livez", headers=[(b"x-request-id", asked)])).headers["x-request-id"]

    assert await id_for(b"my-id/7") == "my-id/7"
    for bad in (b"", b"x" * 129, b"two words", "ü".encode(), b"tab\tbed"):
        assert (await id_for(bad)).startswith("req_")


async def test_unknown_routes_and_methods_get_error_objects(client):
    assert error(await client.get("/v1/nothing"), 404)["type"] == "not_found_error"
    assert error(await client.get("/v1/models/"), 404)
    wrong = await client.put("/v1/chat/completions", json={})
    assert error(wrong, 405)["type"] == "invalid_request_error"
    assert "POST" in wrong.headers["allow"]
    assert error(await client.get("/docs"), 404)


async def test_malformed_bodies_are_400_and_never_422(client):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        for body in (b"", b"{", b"[]", b"\xff", b'{"messages": 5, "prompt": 5, "tokens": 5}'):
            assert error(await client.post(path, content=body), 400)["type"] == "invalid_request_error"


async def test_unknown_parameters_warn_in_a_header_on_every_kind_of_answer(client):
    assert "foo" in (await chat(client, foo=1)).headers[WARNING_HEADER]
    assert "foo" in (await chat(client, foo=1, stream=True)).headers[WARNING_HEADER]
    assert "foo" in (await complete(client, foo=1)).headers[WARNING_HEADER]
    assert "foo" in (await client.post("/tokenize", json={"prompt": "x", "foo": 1})).headers[WARNING_HEADER]
    assert WARNING_HEADER not in (await chat(client)).headers


async def test_other_origins_are_not_let_in(client):
    response = await client.get("/v1/models", headers={"origin": "http://elsewhere"})
    assert not [name for name in response.headers if name.startswith("access-control-")]


async def test_version_and_metrics(client, engine):
    assert set((await client.get("/version")).json()) == {"version"}
    await chat(client)
    metrics = await client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert 'lightwell_generation_tokens_total{engine="0",model_name="tiny"} 12.0' in metrics.text
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 12.0' in metrics.text


def test_the_fingerprint_changes_with_what_could_change_the_answer():
    def fingerprint(**changes) -> str:
        class Other(FakeEngine):
            hello = msgspec.structs.replace(FakeEngine().hello, **changes)

        return make_gateway(Other()).models[0].fingerprint()

    prints = {fingerprint(), fingerprint(model="b"), fingerprint(weight_bytes=2), fingerprint(details={"isa": "avx2"})}
    assert len(prints) == 4
    assert fingerprint() == fingerprint(kv_blocks=5)
