"""Chat and completions over the app: requests as the engine gets them, answers as clients get them, both ways."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.errors import EngineDied, KillsEngine
from lightwell.events import Finished
from lightwell.gateway import prompts
from tests.gateway.fake_engine import BOS, EOS, TURN, TURN_END, FakeEngine, Script, make_client, make_gateway, says, sse

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


async def chat(client, **body):
    return await client.post(CHAT, json={"model": "tiny", "messages": HI} | body)


async def complete(client, **body):
    return await client.post(COMPLETION, json={"model": "tiny", "prompt": "hi"} | body)


def chunks(response) -> list[dict]:
    assert response.status_code == 200
    *events, last = sse(response.text)
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def error(response, status: int) -> dict:
    assert response.status_code == status
    [(name, content)] = response.json().items()
    assert name == "error"
    assert set(content) == {"message", "type", "param", "code"}
    return content


async def test_a_chat_answer_has_the_shape_of_the_api(client, engine):
    response = await chat(client)
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer.pop("id") == engine.requests[0].id
    assert engine.requests[0].id.startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("system_fingerprint").startswith("fp_")
    prompt = len(engine.requests[0].tokens)
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 12,
            "total_tokens": prompt + 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_completion_has_the_shape_of_the_api(client, engine):
    answer = (await complete(client)).json()
    assert answer["id"] == engine.requests[0].id
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    ending = {"finish_reason": "stop", "stop_reason": None}
    assert answer["choices"] == [{"index": 0, "text": "Hello world", "logprobs": None} | ending]


async def test_a_chat_stream_begins_with_the_role_and_ends_with_one_reason(client):
    response = await chat(client, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    events = chunks(response)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"], event["system_fingerprint"]) for event in events}) == 1
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == "Hello world"
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("send", [chat, complete])
async def test_the_usage_event_comes_last_and_only_when_asked(send):
    """Fault 43."""
    engine = FakeEngine(lambda request: says("ab", cached_tokens=2))
    async with make_client(make_gateway(engine)) as client:
        events = chunks(await send(client, stream=True, stream_options={"include_usage": True}))
        assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
        assert all(event["choices"] for event in events[:-1])
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == (await send(client)).json()["usage"]
        assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        for options in (None, {}, {"include_usage": False}):
            events = chunks(await send(client, stream=True, stream_options=options))
            assert all("usage" not in event and event["choices"] for event in events)


@pytest.mark.parametrize("send", [chat, complete])
async def test_stream_options_without_a_stream_are_an_error(client, send):
    assert error(await send(client, stream_options={"include_usage": True}), 400)["param"] == "stream_options"


@settings(max_examples=30, deadline=None)
@given(
    st.binary(max_size=30),
    st.lists(st.sampled_from(["a", "é", "\ufffd", "ab"]), max_size=2),
    st.booleans(),
    st.sampled_from([chat, complete]),
)
async def test_the_stream_joined_is_the_whole_answer_for_any_bytes(data, stop, pauses, send):
    """Faults 35, 37, 40 and 42: random bytes, pauses between some tokens, stop strings."""
    steps = [step for byte in data for step in ((0.0, byte) if pauses and byte % 2 else (byte,))]
    engine = FakeEngine(lambda request: Script([*steps, EOS]))
    async with make_client(make_gateway(engine)) as client:
        whole = (await send(client, stop=stop, max_tokens=20)).json()
        events = chunks(await send(client, stop=stop, max_tokens=20, stream=True))
    [choice] = whole["choices"]
    parts = [choice for event in events for choice in event["choices"]]
    if send is chat:
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
    else:
        assert "".join(part["text"] for part in parts) == choice["text"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]


# Prompts.


async def test_a_rendered_chat_prompt_has_exactly_one_bos(client, engine):
    """Fault 59: this template writes BOS, and the tokenizer would add one."""
    await chat(client, messages=[{"role": "developer", "content": "Be brief."}, *HI])
    text = [BOS, TURN, *b"system:Be brief.", TURN_END, TURN, *b"user:hi", TURN_END, TURN, *b"assistant:"]
    assert engine.requests[0].tokens == text


async def test_a_raw_prompt_gets_bos_if_the_tokenizer_says_so(engine):
    async with make_client(make_gateway(engine)) as client:
        await complete(client)
        await complete(client, add_special_tokens=False)
    async with make_client(make_gateway(engine, add_bos=False)) as client:
        await complete(client)
    assert [request.tokens for request in engine.requests] == [[BOS, *b"hi"], [*b"hi"], [*b"hi"]]


async def test_special_tokens_typed_by_a_user_stay_text(client, engine):
    await chat(client, messages=[{"role": "user", "content": "<|end|>"}])
    assert engine.requests[0].tokens.count(TURN_END) == 1


async def test_content_in_parts_and_template_variables(client, engine):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat(client, messages=[{"role": "user", "content": parts}], add_generation_prompt=False)
    assert bytes(engine.requests[0].tokens[2:-1]) == b"user:one\ntwo"
    image = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    answer = error(await chat(client, messages=[{"role": "user", "content": image}]), 400)
    assert (answer["code"], answer["param"]) == ("unsupported_parameter", "messages[0].content[0].type")


@pytest.mark.parametrize(
    "name", ["tokenizer", "template", "messages", "tools", "add_generation_prompt", "bos_token", "text"]
)
async def test_template_variables_cannot_replace_the_servers_own(client, name):
    response = await chat(client, chat_template_kwargs={name: "x"})
    if name == "text":
        assert response.status_code == 200
    else:
        assert error(response, 400)["param"] == "chat_template_kwargs"


async def test_a_model_without_a_template_says_how_to_give_one(engine):
    async with make_client(make_gateway(engine, chat=False)) as client:
        assert "--chat-template" in error(await chat(client), 400)["message"]
        assert (await complete(client)).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [[BOS, *b"hi"]]),
        (["hi", "you"], [[BOS, *b"hi"], [BOS, *b"you"]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["hi", [7]], [[BOS, *b"hi"], [7]]),
    ],
)
async def test_a_completion_takes_texts_and_token_ids(client, engine, prompt, expected):
    answer = (await complete(client, prompt=prompt)).json()
    assert [request.tokens for request in engine.requests] == expected
    assert len({request.id for request in engine.requests}) == len(expected)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize("prompt", [[], [[]], [1, "x"], [1, [2]], [-1], [260], [[1], [999]], [1.5], [True], None, {}])
async def test_prompts_that_are_none_are_refused(client, engine, prompt):
    assert error(await complete(client, prompt=prompt), 400)["param"].startswith("prompt")
    assert engine.requests == []


async def test_an_empty_prompt_is_refused_where_there_is_no_bos(engine):
    async with make_client(make_gateway(engine, add_bos=False)) as client:
        assert error(await complete(client, prompt=""), 400)["param"] == "prompt"


async def test_choices_of_several_prompts_stream_side_by_side():
    """Fault 42: every index ends with exactly one reason."""
    engine = FakeEngine(lambda request: Script([*bytes(request.tokens), 0.0, *b"!"], end="length"))
    async with make_client(make_gateway(engine, add_bos=False)) as client:
        events = chunks(await complete(client, prompt=["one", "two", "six"], stream=True))
    parts = [choice for event in events for choice in event["choices"]]
    for index, text in enumerate(["one!", "two!", "six!"]):
        mine = [part for part in parts if part["index"] == index]
        assert "".join(part["text"] for part in mine) == text
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["length"]


async def test_long_prompts_are_encoded_beside_the_event_loop(engine, monkeypatch):
    """Fault 72: what blocks the loop delays every stream."""
    used: list[object] = []
    to_thread = prompts.asyncio.to_thread

    async def spy(function, *arguments):
        used.append(function)
        return await to_thread(function, *arguments)

    monkeypatch.setattr(prompts.asyncio, "to_thread", spy)
    engine.context_tokens, engine.kv_blocks = 100_000, 100_000
    long = "word " * 4000
    async with make_client(make_gateway(engine)) as client:
        await complete(client, prompt=long)
        await chat(client, messages=[{"role": "user", "content": long}])
        await complete(client)
    assert len(used) == 2
    assert engine.requests[0].tokens == [BOS, *long.encode()]


# Parameters, as the engine gets them.


async def test_sampling_parameters_reach_the_engine(client, engine):
    await chat(client, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, priority=3, cache_salt="a")
    [request] = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, sampling.logprobs, request.priority, request.salt) == (7, None, 3, "user:local/a")


async def test_defaults_are_those_of_the_api_and_each_request_has_a_seed_of_its_own(client, engine):
    await chat(client, top_k=-1)
    await chat(client)
    for request in engine.requests:
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
        assert request.stop_tokens == {EOS, TURN_END}
    assert len({request.sampling.seed for request in engine.requests}) == 2


@pytest.mark.parametrize(("seed", "engines"), [(-1, 2**64 - 1), (0, 0), (2**64 - 1, 2**64 - 1), (-(2**63), 2**63)])
async def test_seeds_of_any_sign_become_the_engines(client, engine, seed, engines):
    await chat(client, seed=seed)
    assert engine.requests[0].sampling.seed == engines


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_says_the_seed_that_was_drawn(client, engine, stream):
    response = await complete(client, stream=stream)
    seed = response.headers["x-lightwell-seed"]
    assert seed == str(engine.requests[0].sampling.seed)
    await complete(client, seed=int(seed))
    assert engine.requests[1].sampling == engine.requests[0].sampling


async def test_a_seed_too_large_is_refused(client):
    assert error(await chat(client, seed=2**64), 400)["param"] == "seed"


async def test_stop_tokens_are_added_to_the_models_own(client, engine):
    """Fault 36."""
    await chat(client, stop_token_ids=[65], stop="x")
    await chat(client, stop_token_ids=[65], ignore_eos=True)
    assert [request.stop_tokens for request in engine.requests] == [{EOS, TURN_END, 65}, {65}]
    assert error(await chat(client, stop_token_ids=[999]), 400)["param"] == "stop_token_ids"


async def test_an_ignored_eos_is_shown_only_with_special_tokens():
    engine = FakeEngine(lambda request: Script([65, EOS, 66], end="length"))
    async with make_client(make_gateway(engine)) as client:
        texts = [
            (await complete(client, ignore_eos=True, skip_special_tokens=skip)).json()["choices"][0]["text"]
            for skip in (True, False)
        ]
    assert texts == ["AB", "A<eos>B"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_engines_work(stream):
    engine = FakeEngine(lambda request: Script([*b"say STOP and more", 3600.0], cached_tokens=4))
    gateway = make_gateway(engine)
    async with make_client(gateway) as client:
        response = await chat(client, stop="STOP", stream=stream)
        metrics = (await client.get("/metrics")).text
    if stream:
        choices = [choice for event in chunks(response) for choice in event["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert choices[-1]["finish_reason"] == "stop"
    else:
        text = response.json()["choices"][0]["message"]["content"]
        assert response.json()["choices"][0]["finish_reason"] == "stop"
        assert response.json()["usage"]["completion_tokens"] == 8
        assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert text == "say "
    assert engine.aborted == [engine.requests[0].id]
    assert engine.open == set()
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0' in metrics
    assert 'finished_reason="abort"' not in metrics


async def test_a_choice_that_stops_first_is_aborted_while_the_others_go_on():
    stopped = asyncio.Event()

    def script(request):
        return Script([*b"aSTOP", 3600.0] if request.tokens == [1] else [*b"b", stopped.wait(), *b"c", EOS])

    engine = FakeEngine(script)
    engine.subscribe(lambda events: stopped.set() if isinstance(events[0], Finished) else None)
    async with make_client(make_gateway(engine)) as client:
        answer = (await complete(client, prompt=[[1], [2]], stop="STOP")).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a", "bc"]
    assert engine.aborted == [engine.requests[0].id]


async def test_the_stop_string_stays_on_request_and_an_empty_one_is_refused(client):
    answer = (await complete(client, stop=["o w"], include_stop_str_in_output=True)).json()
    assert answer["choices"][0]["text"] == "Hello w"
    assert error(await complete(client, stop=""), 400)["param"] == "stop"


# Length.


async def test_chat_may_use_the_room_left_and_completions_sixteen_tokens(client, engine):
    """Fault 56."""
    await chat(client)
    await complete(client)
    first, second = engine.requests
    assert first.max_tokens == 512 - len(first.tokens)
    assert second.max_tokens == 16


async def test_a_default_never_exceeds_the_room_left(engine):
    engine.context_tokens = 13
    async with make_client(make_gateway(engine)) as client:
        await complete(client)
    assert engine.requests[0].max_tokens == 10


@pytest.mark.parametrize(
    ("send", "param", "prompt"), [(chat, "messages", 21), (complete, "prompt", 3)], ids=["chat", "completions"]
)
async def test_what_does_not_fit_is_refused_with_all_numbers(client, engine, send, param, prompt):
    """Faults 53 and 57: never cut, never 500, the same on both endpoints."""
    assert (await send(client, max_tokens=512 - prompt)).status_code == 200
    for stream in (False, True):
        answer = error(await send(client, max_tokens=513 - prompt, stream=stream), 400)
        assert (answer["code"], answer["param"]) == ("context_length_exceeded", param)
        for number in (prompt, 513 - prompt, 512):
            assert str(number) in answer["message"]
    assert len(engine.requests) == 1
    huge = error(await send(client, max_tokens=10**30), 400)
    assert huge["code"] == "context_length_exceeded"


async def test_a_prompt_that_fills_the_window_is_refused(client):
    assert error(await complete(client, prompt=[1] * 512), 400)["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "x" * 600}]
    assert error(await chat(client, messages=long), 400)["code"] == "context_length_exceeded"


async def test_a_small_kv_cache_is_the_limit(engine):
    engine.kv_blocks = 2
    async with make_client(make_gateway(engine)) as client:
        await chat(client)
        assert "KV cache holds 64" in error(await chat(client, max_tokens=60), 400)["message"]
    assert engine.requests[0].max_tokens == 64 - len(engine.requests[0].tokens)


async def test_both_names_of_the_length_must_agree(client, engine):
    await chat(client, max_completion_tokens=5)
    await chat(client, max_tokens=5, max_completion_tokens=5)
    assert [request.max_tokens for request in engine.requests] == [5, 5]
    assert error(await chat(client, max_tokens=5, max_completion_tokens=6), 400)["param"] == "max_tokens"


async def test_length_is_the_reason_when_the_bound_is_reached(client):
    [choice] = (await chat(client, max_tokens=3)).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")


# Log-probabilities.


async def test_chat_logprobs_have_the_shape_of_the_api(client, engine):
    """Fault 51."""
    answer = (await chat(client, logprobs=True, top_logprobs=2, max_tokens=1)).json()
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H",
                "logprob": -1.0,
                "bytes": [72],
                "top_logprobs": [
                    {"token": "I", "logprob": -0.5, "bytes": [73]},
                    {"token": "H", "logprob": -1.0, "bytes": [72]},
                ],
            }
        ],
        "refusal": None,
    }
    answer = (await chat(client, logprobs=True)).json()
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[]] * 11
    assert [request.sampling.logprobs for request in engine.requests] == [2, 0]


async def test_top_logprobs_need_logprobs(client):
    assert error(await chat(client, top_logprobs=2), 400)["param"] == "top_logprobs"
    assert (await chat(client, logprobs=False, top_logprobs=None)).status_code == 200


async def test_completion_logprobs_have_the_older_shape(client):
    answer = (await complete(client, logprobs=1, max_tokens=2)).json()
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["H", "e"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"I": -0.5, "H": -1.0}, {"f": -0.5, "e": -1.0}],
        "text_offset": [0, 1],
    }


# Models.


@pytest.mark.parametrize("send", [chat, complete])
async def test_the_model_must_be_one_that_is_served(client, send):
    assert (await send(client, model="alias")).json()["model"] == "alias"
    assert (await send(client, model=None)).json()["model"] == "tiny"
    answer = error(await send(client, model="gpt-4"), 404)
    assert (answer["code"], answer["param"], answer["type"]) == ("model_not_found", "model", "not_found_error")
    assert "tiny" in answer["message"]


# Failures of the engine.


@pytest.mark.parametrize("send", [chat, complete])
async def test_an_error_before_the_first_token_keeps_its_status(send):
    engine = FakeEngine(lambda request: Script([EngineDied("The engine's process ended.")]))
    async with make_client(make_gateway(engine)) as client:
        for stream in (False, True):
            answer = error(await send(client, stream=stream), 503)
            assert answer["code"] == "engine_died"


async def test_a_request_that_kills_engines_is_not_to_be_repeated():
    engine = FakeEngine(lambda request: Script([KillsEngine(request.id)]))
    async with make_client(make_gateway(engine)) as client:
        response = await complete(client)
    assert error(response, 500)["code"] == "engine_died"
    assert engine.requests[0].id in response.json()["error"]["message"]
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("send", [chat, complete])
async def test_an_error_after_the_first_token_ends_the_stream_with_one_event(send):
    engine = FakeEngine(lambda request: Script([72, 0.0, 105, 0.0, EngineDied("The engine's process ended.")]))
    async with make_client(make_gateway(engine)) as client:
        response = await send(client, stream=True)
        assert error(await send(client), 503)["code"] == "engine_died"
    events = [json.loads(event) for event in sse(response.text)]
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    assert "".join(c.get("text", "") + c.get("delta", {}).get("content", "") for c in choices) == "Hi"
    assert events[-1]["error"]["code"] == "engine_died"
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in response.text


async def test_one_failing_choice_ends_the_work_of_the_others():
    def script(request):
        return Script([EngineDied("gone")] if request.tokens == [2] else [72, 3600.0])

    engine = FakeEngine(script)
    async with make_client(make_gateway(engine)) as client:
        assert error(await complete(client, prompt=[[1], [2], [3]]), 503)["code"] == "engine_died"
    assert engine.open == set()
    assert len(engine.aborted) == 3


async def test_a_bug_is_a_500_with_the_request_id_and_logged_once(engine, caplog):
    engine.script = lambda request: Script([72, 0.0, RuntimeError("a bug")])
    async with make_client(make_gateway(engine)) as client:
        response = await chat(client)
        answer = error(response, 500)
        assert (answer["type"], answer["code"]) == ("server_error", "internal_error")
        assert response.headers["x-request-id"] in answer["message"]
        assert "a bug" not in response.text
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
        caplog.clear()
        stream = await chat(client, stream=True)
        assert stream.headers["x-request-id"] in json.loads(sse(stream.text)[-1])["error"]["message"]
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
