"""What becomes of a conversation that does not fit, and of stored instructions: always said, never more than asked."""

import json

import pytest

from lightwell.gateway.caller import Caller
from lightwell.gateway.gateway import Gateway
from tests.gateway.fake_engine import FakeEngine, make_client, says, sse

OLD = [
    {"role": "user", "content": "The password is mango. " + "a" * 150},
    {"role": "assistant", "content": "b" * 100},
]
TOOLED = [
    {"role": "user", "content": "c" * 40},
    {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "d" * 40},
    {"role": "assistant", "content": "e" * 20},
]
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "And now?"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(context_tokens=512)


def prompt(gateway: Gateway, engine: FakeEngine, number: int = -1) -> str:
    return gateway.models[0].tokenizer.decode(engine.requests[number].tokens, skip_special=False)


async def ask(client, messages, **more):
    return await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 64, **more})


async def test_what_does_not_fit_is_refused_unless_asked_otherwise(client, engine):
    for more in ({}, {"truncation": "refuse"}):
        response = await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION], **more)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.requests == []


@pytest.mark.parametrize("truncation", ["drop_oldest", "summarize"])
async def test_what_fits_is_left_alone(client, gateway, engine, truncation):
    response = await ask(client, [SYSTEM, QUESTION], truncation=truncation)
    assert "context" not in response.json()
    assert "x-lightwell-context" not in response.headers
    assert prompt(gateway, engine).count("<|turn|>") == 3


async def test_the_oldest_turns_go_and_that_is_said(client, gateway, engine):
    response = await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION], truncation="drop_oldest")
    seen = prompt(gateway, engine)
    assert "mango" not in seen
    assert all(text in seen for text in ("Be brief.", "And now?", "c" * 40, "d" * 40, "look"))
    context = response.json()["context"]
    assert context == json.loads(response.headers["x-lightwell-context"])
    assert (context["truncation"], context["window_tokens"], context["dropped_messages"]) == ("drop_oldest", 512, 2)
    assert context["prompt_tokens"] == response.json()["usage"]["prompt_tokens"] == len(engine.requests[-1].tokens)
    assert context["dropped_tokens"] > 270


async def test_a_stream_says_it_too(client):
    response = await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION], truncation="drop_oldest", stream=True)
    first, *others = [json.loads(event) for event in sse(response.text)[:-1]]
    assert first["context"] == json.loads(response.headers["x-lightwell-context"])
    assert all("context" not in chunk for chunk in others)


async def test_a_call_goes_with_its_result(client, gateway, engine):
    messages = [SYSTEM, *TOOLED, {"role": "user", "content": "f" * 300}]
    response = await ask(client, messages, truncation="drop_oldest")
    assert response.json()["context"]["dropped_messages"] == 4
    seen = prompt(gateway, engine)
    assert "look" not in seen
    assert "d" * 40 not in seen


async def test_the_question_is_never_cut(client, engine):
    response = await ask(client, [SYSTEM, *OLD, {"role": "user", "content": "g" * 600}], truncation="drop_oldest")
    assert response.status_code == 400
    assert "64 for the answer), but the context window holds 512" in response.json()["error"]["message"]
    assert engine.requests == []


async def test_older_turns_are_summarized_by_the_model_and_kept(gateway, client, engine):
    engine.script = lambda request: says("They said mango." if request.sampling.temperature == 0 else "Yes.")
    conversation = [SYSTEM, *OLD, *TOOLED, QUESTION]
    response = await ask(client, conversation, truncation="summarize")
    assert "The password is mango." in "".join(prompt(gateway, engine, n) for n in range(len(engine.requests) - 1))
    seen = prompt(gateway, engine)
    assert "They said mango." in seen
    assert "The password is mango." not in seen
    assert seen.index("Be brief.") < seen.index("They said mango.") < seen.index("And now?")
    context = response.json()["context"]
    assert context["dropped_messages"] > 0
    assert context["summary_tokens"] >= len("They said mango.")
    assert context["prompt_tokens"] == len(engine.requests[-1].tokens)

    asked = len(engine.requests)
    await ask(client, conversation, truncation="summarize")
    assert len(engine.requests) == asked + 1  # the summary was there
    await ask(client, [*conversation, {"role": "assistant", "content": "h" * 200}, QUESTION], truncation="summarize")
    again = "".join(prompt(gateway, engine, n) for n in range(asked + 1, len(engine.requests) - 1))
    assert "They said mango." in again  # a longer one goes on from it
    assert "The password is mango." not in again


async def test_a_summary_is_for_one_tenant(gateway, engine, monkeypatch):
    engine.script = lambda request: says("Sum." if request.sampling.temperature == 0 else "Yes.")
    counts = []
    for user in ("one", "two", "one"):
        monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key="k", user=user))
        before = len(engine.requests)
        async with make_client(gateway) as client:
            await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION], truncation="summarize")
        counts.append(len(engine.requests) - before)
    assert counts[0] == counts[1] > counts[2] == 1


async def test_a_caller_may_have_another_default(gateway, monkeypatch):
    monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key="k", user="u", truncation="drop_oldest"))
    async with make_client(gateway) as client:
        assert (await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION])).json()["context"]["dropped_messages"] == 2
        assert (await ask(client, [SYSTEM, *OLD, *TOOLED, QUESTION], truncation="refuse")).status_code == 400


async def test_an_unknown_way_is_refused(client):
    response = await ask(client, [QUESTION], truncation="middle")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "truncation"


async def test_stored_instructions_come_first_and_are_shown(client, gateway, engine):
    put = await client.put("/v1/admin/instructions/model:tiny", json={"text": "Always answer in Latin."})
    assert put.status_code == 200
    response = await ask(client, [SYSTEM, QUESTION])
    seen = prompt(gateway, engine)
    assert seen.index("Always answer in Latin.") < seen.index("Be brief.") < seen.index("And now?")
    assert response.json()["context"]["instructions"] == ["model:tiny"]
    listed = (await client.get("/v1/admin/instructions")).json()["data"]
    assert listed == [{"object": "instructions", "subject": "model:tiny", "text": "Always answer in Latin."}]
    assert (await client.delete("/v1/admin/instructions/model:tiny")).json()["deleted"] is True
    assert (await client.delete("/v1/admin/instructions/model:tiny")).status_code == 404
    assert "context" not in (await ask(client, [SYSTEM, QUESTION])).json()
    assert "Latin" not in prompt(gateway, engine)


async def test_instructions_are_for_the_key_and_the_team_they_name(gateway, engine, monkeypatch):
    async with make_client(gateway) as client:
        for subject in ("key:k1", "team:red", "key:k2"):
            await client.put(f"/v1/admin/instructions/{subject}", json={"text": f"For {subject}."})
    monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key="k1", user="u", team="red"))
    async with make_client(gateway) as client:
        assert (await ask(client, [QUESTION])).json()["context"]["instructions"] == ["team:red", "key:k1"]
        assert "For key:k2." not in prompt(gateway, engine)
        assert (await client.get("/v1/admin/instructions")).status_code == 403


@pytest.mark.parametrize(
    ("subject", "body"), [("nobody", {"text": "x"}), ("key:", {"text": "x"}), ("key:a", {"text": " "}), ("key:a", {})]
)
async def test_instructions_that_are_for_nobody_or_say_nothing_are_refused(client, subject, body):
    response = await client.put(f"/v1/admin/instructions/{subject}", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


async def test_nothing_is_opened_for_a_chat_where_nothing_was_stored(client, gateway):
    await ask(client, [QUESTION])
    assert gateway.store.is_new
