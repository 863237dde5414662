"""Several choices, echoed prompts, penalties and the other parameters of generation: as engine and client see them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.events import PromptScored, Sampled, TokenLogprobs
from lightwell.sampling.params import SamplingParams
from tests.gateway.fake_engine import (
    BOS,
    EOS,
    TURN,
    TURN_END,
    FakeEngine,
    Script,
    make_client,
    make_gateway,
    says,
)
from tests.gateway.test_generation_api import HI, chat, chunks, complete, error


async def answer(client, **body) -> dict:
    response = await complete(client, **body)
    assert response.status_code == 200, response.text
    return response.json()


def numbered(request) -> int:
    """Which of several choices this is, by its id."""
    _, _, number = request.id.partition("-")[2].partition("-")
    return int(number or 0)


# n and best_of.


@pytest.mark.parametrize("send", [chat, complete])
async def test_choices_are_requests_of_their_own_that_share_the_first_ones_prompt(client, engine, send):
    body = (await send(client, n=3, seed=11, max_tokens=20)).json()
    first, *others = engine.requests
    assert [request.id for request in engine.requests] == [f"{body['id']}-{n}" for n in range(3)]
    assert [request.fork_of for request in engine.requests] == ["", first.id, first.id]
    assert all(request.tokens == first.tokens for request in others)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == len(first.tokens)
    assert body["usage"]["completion_tokens"] == 3 * 12


async def test_the_first_choice_is_the_one_that_a_single_one_would_be(client, engine):
    for n in (1, 2, 3):
        await complete(client, n=n, seed=11, temperature=0.7)
    alone, *two = engine.requests[:3]
    three = engine.requests[3:]
    assert alone.sampling == two[0].sampling == three[0].sampling
    assert [request.sampling.seed for request in two] == [request.sampling.seed for request in three[:2]]
    assert len({request.sampling.seed for request in three}) == 3
    assert two[1].sampling.temperature == 0.7


async def test_several_prompts_have_their_choices_in_order(engine):
    engine.script = lambda request: says(bytes(request.tokens))
    async with make_client(make_gateway(engine, add_bos=False)) as client:
        body = await answer(client, prompt=["one", "three"], n=2)
    assert [choice["text"] for choice in body["choices"]] == ["one", "one", "three", "three"]
    assert [request.fork_of for request in engine.requests] == ["", f"{body['id']}-0", "", f"{body['id']}-2"]
    assert body["usage"]["prompt_tokens"] == 8


async def test_prompts_of_token_ids_have_several_choices_too(client, engine):
    body = await answer(client, prompt=[[1, 2], [3]], n=2)
    assert [request.tokens for request in engine.requests] == [[1, 2], [1, 2], [3], [3]]
    assert len(body["choices"]) == 4


async def test_cached_tokens_are_those_of_the_first_choice():
    engine = FakeEngine(lambda request: says("a", cached_tokens=2 if numbered(request) == 0 else 3))
    async with make_client(make_gateway(engine)) as client:
        body = await answer(client, n=3)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def by_choice(*texts):
    """Each choice says its own text."""
    return lambda request: says(texts[numbered(request) % len(texts)])


class Scoring(FakeEngine):
    """Tokens are likelier the smaller their id, stop tokens have -1: so answers differ in their mean."""

    def _emit(self, event):
        if isinstance(event, Sampled) and event.logprobs is not None:
            chosen = -0.01 * event.token if event.token < 256 else -1.0
            event = Sampled(event.at, event.request, event.token, TokenLogprobs(chosen, [], []))
        return super()._emit(event)


async def test_the_best_are_those_with_the_highest_mean_log_probability():
    engine = Scoring(by_choice("zzz", "a", "aaaaaaaa", "zb"))
    async with make_client(make_gateway(engine)) as client:
        body = await answer(client, n=2, best_of=4)
    # Means with the stop token's -1: zzz -1.165, a -0.985, aaaaaaaa -0.973, zb -1.066.
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "aaaaaaaa"), (1, "a")]
    assert [choice["logprobs"] for choice in body["choices"]] == [None, None]
    assert body["usage"]["completion_tokens"] == 4 + 2 + 9 + 3
    assert body["usage"]["prompt_tokens"] == 3
    assert {request.sampling.logprobs for request in engine.requests} == {0}


async def test_each_prompt_has_its_own_best():
    engine = Scoring(by_choice("zz", "a", "b", "yy"))
    async with make_client(make_gateway(engine)) as client:
        body = await answer(client, prompt=["x", "y"], best_of=2, logprobs=0, return_token_ids=True)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "a"), (1, "b")]
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[BOS, *b"x"], [BOS, *b"y"]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 129}, "n"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": -1}, "best_of"),
    ],
)
async def test_impossible_numbers_of_choices_are_refused(client, engine, body, param):
    assert error(await complete(client, **body), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("ways", [{"n": 4}, {"n": 2, "best_of": 4}])
async def test_one_request_has_no_more_than_so_many_sequences(client, engine, ways):
    said = error(await complete(client, prompt=["hi"] * 257, **ways), 400)
    assert said["param"] == "prompt"
    assert all(number in said["message"] for number in ("257", "1028", "1024"))
    assert engine.requests == []
    assert (await complete(client, prompt=["hi"] * 256, max_tokens=1, **ways)).status_code == 200
    assert len(engine.requests) == 1024


async def test_as_many_candidates_as_choices_may_stream(client, engine):
    parts = [
        choice for event in chunks(await complete(client, n=2, best_of=2, stream=True)) for choice in event["choices"]
    ]
    assert {part["index"] for part in parts} == {0, 1}
    assert (await complete(client, best_of=0)).status_code == 200
    assert [request.sampling.logprobs for request in engine.requests] == [None] * 3


# Echo.


async def test_an_echo_begins_with_the_prompts_text(client, engine):
    assert (await answer(client, echo=True))["choices"][0]["text"] == "hiHello world"
    assert (await answer(client, echo=True, prompt=[*b"yo"]))["choices"][0]["text"] == "yoHello world"
    assert [request.prompt_logprobs for request in engine.requests] == [None, None]
    assert (await answer(client, echo=False))["choices"][0]["text"] == "Hello world"


async def test_an_echo_with_log_probabilities_has_the_prompts_first(client, engine):
    choice = (await answer(client, prompt="abc", echo=True, logprobs=1, max_tokens=2))["choices"][0]
    assert choice["text"] == "abcHe"
    assert choice["logprobs"] == {
        "tokens": ["<bos>", "a", "b", "c", "H", "e"],
        "token_logprobs": [None, -1.0, -1.0, -1.0, -1.0, -1.0],
        "top_logprobs": [None, *({chr(ord(c) + 1): -0.5, c: -1.0} for c in "abcHe")],
        "text_offset": [0, 0, 1, 2, 3, 4],
    }
    assert engine.requests[0].prompt_logprobs == 1


@pytest.mark.parametrize("prompt", ["hi", [*b"hi"], [5]])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
async def test_an_echo_alone_writes_nothing(client, engine, prompt, logprobs):
    body = await answer(client, prompt=prompt, echo=True, max_tokens=0, logprobs=logprobs, n=2)
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "length"]
    assert {choice["text"] for choice in body["choices"]} == {prompt if prompt == "hi" else bytes(prompt).decode()}
    assert body["usage"]["completion_tokens"] == 0
    assert [(request.max_tokens, request.prompt_logprobs) for request in engine.requests] == [(0, logprobs or 0)] * 2
    if logprobs is None:
        assert [choice["logprobs"] for choice in body["choices"]] == [None, None]
    else:
        assert [choice["logprobs"]["token_logprobs"][:1] for choice in body["choices"]] == [[None], [None]]


async def test_a_prompt_that_fills_the_window_can_be_scored(client):
    choice = (await answer(client, prompt=[1] * 512, echo=True, max_tokens=0, logprobs=0))["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == 512
    answered = error(await complete(client, prompt=[1] * 513, echo=True, max_tokens=0, logprobs=0), 400)
    assert answered["code"] == "context_length_exceeded"
    assert "513" in answered["message"]


async def test_no_tokens_without_an_echo_are_refused(client):
    assert error(await complete(client, max_tokens=0), 400)["param"] == "max_tokens"
    assert error(await chat(client, max_tokens=0), 400)["param"] == "max_tokens"
    assert error(await chat(client, echo=True), 400)["code"] == "unsupported_parameter"


async def test_only_the_first_choice_has_the_prompt_scored(client, engine):
    body = await answer(client, echo=True, logprobs=0, n=3, max_tokens=1)
    assert [request.prompt_logprobs for request in engine.requests] == [0, None, None]
    assert [choice["logprobs"]["tokens"] for choice in body["choices"]] == [["<bos>", "h", "i", "H"]] * 3


async def test_control_tokens_in_an_echo(client):
    """In a text their names are text that the client wrote; as ids they are shown on request."""
    choice = (await answer(client, prompt="<|end|>é!", echo=True, logprobs=0, max_tokens=0))["choices"][0]
    assert choice["text"] == "<|end|>é!"
    assert choice["logprobs"]["text_offset"] == [0, 0, 7, 8, 8]
    ids = [BOS, 65, TURN_END, 66]
    for skip, text, offsets in [(True, "AB", [0, 0, 1, 1]), (False, "<bos>A<|end|>B", [0, 5, 6, 13])]:
        body = await answer(client, prompt=ids, echo=True, logprobs=0, max_tokens=0, skip_special_tokens=skip)
        assert body["choices"][0]["text"] == text
        assert body["choices"][0]["logprobs"]["text_offset"] == offsets


async def test_a_written_bos_is_echoed_and_an_added_one_is_not(client):
    for prompt, offsets in [("hi", [0, 0, 1]), ("<bos>hi", [0, 5, 6])]:
        choice = (await answer(client, prompt=prompt, echo=True, logprobs=0, max_tokens=0))["choices"][0]
        assert choice["text"] == prompt
        assert choice["logprobs"]["text_offset"] == offsets


async def test_a_streamed_echo_is_the_first_chunk(client):
    parts = [
        c for event in chunks(await complete(client, echo=True, logprobs=0, stream=True)) for c in event["choices"]
    ]
    assert parts[0]["text"] == "hi"
    assert parts[0]["logprobs"]["tokens"] == ["<bos>", "h", "i"]
    assert "".join(part["text"] for part in parts) == "hiHello world"


async def test_stop_strings_do_not_end_an_echo(client):
    assert (await answer(client, prompt="an old STOP", stop="STOP", echo=True))["choices"][0]["text"] == (
        "an old STOPHello world"
    )


@settings(max_examples=50, deadline=None)
@given(st.text("aé漢😀<", min_size=1, max_size=10), st.integers(0, 4))
async def test_offsets_point_into_the_text(prompt, written):
    engine = FakeEngine(lambda request: says("é!漢x"))
    async with make_client(make_gateway(engine)) as client:
        choice = (await answer(client, prompt=prompt, echo=True, logprobs=0, max_tokens=written))["choices"][0]
    text, scores = choice["text"], choice["logprobs"]
    assert scores["text_offset"] == sorted(scores["text_offset"])
    for name, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        if not name.startswith(("bytes:", "<bos>", "<eos>")):
            assert text[offset : offset + len(name)] == name


# Log-probabilities of the prompt, as vLLM shows them.


def place(token: int, *top: int) -> dict:
    shown = {token: (-1.0, top.index(token) + 1 if token in top else None)}
    shown |= {other: (-0.5 * rank, rank) for rank, other in enumerate(top, 1) if other != token}
    return {
        str(key): {"logprob": logprob, "rank": rank, "decoded_token": chr(key)}
        for key, (logprob, rank) in shown.items()
    }


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"echo": True, "logprobs": 3}, {"echo": True, "max_tokens": 0}])
async def test_a_completion_has_its_prompts_log_probabilities_in_each_choice(client, engine, more):
    body = await answer(client, prompt="ab", prompt_logprobs=1, **more)
    wanted = [None, place(97, 98), place(98, 99)]
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [wanted] * more.get("n", 1)
    asked = max(1, more.get("logprobs", 0))
    assert [request.prompt_logprobs for request in engine.requests] == [asked] + [None] * (more.get("n", 1) - 1)


async def test_each_place_has_its_token_and_as_many_of_the_likeliest_as_asked(client, engine):
    for count, wanted in [(0, place(97)), (2, place(97, 98, 97)), (3, place(97, 98, 97, 99))]:
        body = await answer(client, prompt=[5, 97], prompt_logprobs=count, max_tokens=1)
        assert body["choices"][0]["prompt_logprobs"] == [None, wanted]
        assert next(iter(wanted)) == "97"


async def test_an_echo_shows_as_many_as_it_asked_for_itself(client):
    body = await answer(client, prompt="ab", prompt_logprobs=4, echo=True, logprobs=1, max_tokens=1)
    assert [len(top or {}) for top in body["choices"][0]["logprobs"]["top_logprobs"]] == [0, 2, 2, 2]


async def test_a_chat_has_its_prompts_log_probabilities_beside_the_choices(client, engine):
    body = (await chat(client, prompt_logprobs=0, n=2)).json()
    assert len(body["prompt_logprobs"]) == len(engine.requests[0].tokens)
    assert body["prompt_logprobs"][0] is None
    assert all("prompt_logprobs" not in choice for choice in body["choices"])
    assert "prompt_logprobs" not in (await chat(client)).json()


@pytest.mark.parametrize("send", [chat, complete])
async def test_streams_have_no_log_probabilities_of_the_prompt(client, engine, send):
    assert error(await send(client, prompt_logprobs=0, stream=True), 400)["param"] == "prompt_logprobs"
    assert error(await send(client, prompt_logprobs=-1), 400)["param"] == "prompt_logprobs"
    assert engine.requests == []


# What evaluation harnesses do with it.


class Likelihoods(FakeEngine):
    """A token's log-probability is its id / -100, and odd ones are the likeliest."""

    def _emit(self, event):
        if isinstance(event, PromptScored):
            tokens = self.requests[-1].tokens[event.start :]
            scores = [_likelihood(token) for token, _ in zip(tokens, event.scores, strict=False)]
            event = PromptScored(event.at, event.request, event.start, scores)
        return super()._emit(event)


def _likelihood(token: int) -> TokenLogprobs:
    return TokenLogprobs(-token / 100, [token if token % 2 else 7], [-token / 100 if token % 2 else -0.1])


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_the_likelihood_of_a_continuation(max_tokens):
    """As lm-eval asks for it: ids of context and continuation, echoed, with one token of answer that it leaves out."""
    context, continuations = [*b"The sky is "], [[*b"blue"], [*b"green"]]
    engine = Likelihoods(lambda request: Script([EOS]))  # ends at once: the last place is a stop token's
    async with make_client(make_gateway(engine)) as client:
        for continuation in continuations:
            tokens = context + continuation
            body = {"prompt": [tokens], "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "echo": True}
            scores = (await answer(client, **body))["choices"][0]["logprobs"]
            end = len(tokens)
            assert len(scores["tokens"]) == end + max_tokens
            found = scores["token_logprobs"][len(context) : end]
            assert sum(found) == pytest.approx(sum(-token / 100 for token in continuation))
            tops = scores["top_logprobs"][len(context) : end]
            greedy = [logprob == max(top.values()) for logprob, top in zip(found, tops, strict=True)]
            assert greedy == [token % 2 == 1 for token in continuation]


# Log-probabilities and token ids.


async def test_a_stop_token_has_its_place_in_completions_and_none_in_chats(client):
    scores = (await answer(client, logprobs=0))["choices"][0]["logprobs"]
    assert scores["tokens"] == [*"Hello world", "<eos>"]
    assert scores["text_offset"] == [*range(11), 11]
    content = (await chat(client, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [*"Hello world"]


async def test_hidden_control_tokens_keep_scores_with_their_text():
    engine = FakeEngine(lambda request: Script([65, EOS, *b"B and STOP"], end="length"))
    async with make_client(make_gateway(engine)) as client:
        body = {"ignore_eos": True, "logprobs": 0, "stop": "STOP"}
        for skip, offsets in [(True, [0, 1, 1, 2, 3, 4, 5, 6]), (False, [0, 1, 6, 7, 8, 9, 10, 11])]:
            scores = (await answer(client, skip_special_tokens=skip, **body))["choices"][0]["logprobs"]
            assert scores["tokens"] == ["A", "<eos>", *"B and "]
            assert scores["text_offset"] == offsets


async def test_token_ids_come_with_the_text_and_the_prompts_before_it(client, engine):
    body = await answer(client, return_token_ids=True)
    [choice] = body["choices"]
    assert choice["prompt_token_ids"] == engine.requests[0].tokens
    assert choice["token_ids"] == [*b"Hello world", EOS]
    assert len(choice["token_ids"]) == body["usage"]["completion_tokens"]
    whole = (await chat(client, return_token_ids=True)).json()
    assert whole["prompt_token_ids"] == engine.requests[1].tokens
    assert whole["choices"][0]["token_ids"] == [*b"Hello world", EOS]


async def test_streamed_token_ids(client, engine):
    events = chunks(await chat(client, return_token_ids=True, stream=True))
    assert events[0]["prompt_token_ids"] == engine.requests[0].tokens
    assert all("prompt_token_ids" not in event for event in events[1:])
    streamed = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", [])]
    assert streamed == [*b"Hello world", EOS]
    parts = [
        choice
        for event in chunks(await complete(client, return_token_ids=True, stream=True, n=2))
        for choice in event["choices"]
    ]
    for index in range(2):
        first, *others = [part for part in parts if part["index"] == index]
        assert first["prompt_token_ids"] == [BOS, *b"hi"]
        assert all("prompt_token_ids" not in part for part in others)
        assert [token for part in others for token in part.get("token_ids", [])] == [*b"Hello world", EOS]


async def test_nothing_is_said_of_token_ids_unasked(client):
    assert "token_ids" not in (await chat(client)).text
    assert "token_ids" not in (await complete(client, stream=True)).text


async def test_tokens_named_by_their_ids(client):
    asked = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    scores = (await answer(client, logprobs=1, **asked))["choices"][0]["logprobs"]
    assert scores["tokens"] == ["token_id:72"]
    assert scores["top_logprobs"] == [{"token_id:73": -0.5, "token_id:72": -1.0}]
    [entry] = (await chat(client, logprobs=True, top_logprobs=1, **asked)).json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["top_logprobs"][0]["token"]) == ("token_id:72", [72], "token_id:73")


# Penalties, biases, bounds.


@pytest.mark.parametrize("send", [chat, complete])
async def test_penalties_and_biases_reach_the_engine(client, engine, send):
    asked = {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.3}
    await send(client, logit_bias={"5": -100, "259": 1.5}, min_tokens=3, **asked)
    await send(client, logit_bias={}, presence_penalty=None)
    [request, plain] = engine.requests
    assert {name: getattr(request.sampling, name) for name in asked} == asked
    assert (request.sampling.logit_bias, request.min_tokens) == ({5: -100, 259: 1.5}, 3)
    assert plain.sampling == SamplingParams(seed=plain.sampling.seed)
    assert plain.min_tokens == 0


@pytest.mark.parametrize("key", ["260", "-1", "01", "1.0", "x", "", " 1", "١", "9" * 5000])
async def test_biases_name_tokens_of_the_vocabulary(client, engine, key):
    answered = error(await chat(client, logit_bias={key: 1}), 400)
    assert answered["param"] == "logit_bias"
    assert "259" in answered["message"]
    assert engine.requests == []


async def test_too_many_biases_are_refused_with_both_numbers(client):
    answered = error(await complete(client, logit_bias={str(n): 1 for n in range(1025)}), 400)
    assert answered["param"] == "logit_bias"
    assert "1025" in answered["message"]
    assert "1024" in answered["message"]


async def test_the_least_number_of_tokens_is_at_most_the_greatest(client, engine):
    assert (await complete(client, min_tokens=5, max_tokens=5)).status_code == 200
    for body in (
        {"min_tokens": 6, "max_tokens": 5},
        {"min_tokens": 17},
        {"min_tokens": 1, "max_tokens": 0, "echo": True},
    ):
        assert error(await complete(client, **body), 400)["param"] == "min_tokens"
    assert error(await chat(client, min_tokens=512), 400)["param"] == "min_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_before_the_least_number_of_tokens_are_text(stream):
    engine = FakeEngine(lambda request: says("a.b.c.d"))
    async with make_client(make_gateway(engine)) as client:
        for least, text in [(0, "a"), (2, "a"), (3, "a.b"), (4, "a.b"), (5, "a.b.c"), (7, "a.b.c.d")]:
            response = await complete(client, stop=".", min_tokens=least, stream=stream)
            if stream:
                found = "".join(part["text"] for event in chunks(response) for part in event["choices"])
            else:
                found = response.json()["choices"][0]["text"]
            assert found == text


# What ended an answer.


@pytest.mark.parametrize(
    ("asked", "reason", "told"),
    [
        ({}, "stop", None),
        ({"stop": ["o w", "zz"]}, "stop", "o w"),
        ({"stop_token_ids": [ord("w")]}, "stop", ord("w")),
        ({"stop_token_ids": [EOS]}, "stop", EOS),
        ({"max_tokens": 3}, "length", None),
        ({"stop_token_ids": [TURN], "stop": "zz"}, "stop", None),
    ],
)
@pytest.mark.parametrize("send", [chat, complete])
async def test_the_reason_names_the_stop(client, send, asked, reason, told):
    choice = (await send(client, **asked)).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, told)
    last = [part for event in chunks(await send(client, stream=True, **asked)) for part in event["choices"]][-1]
    assert (last["finish_reason"], last["stop_reason"]) == (reason, told)


async def test_a_stop_token_that_the_client_names_counts_even_where_eos_is_ignored(client, engine):
    await chat(client, ignore_eos=True, stop_token_ids=[EOS])
    assert engine.requests[0].stop_tokens == {EOS}


# Going on with the last message.


async def test_the_last_message_is_continued(client, engine):
    messages = [*HI, {"role": "assistant", "content": "Sure, "}]
    await chat(client, messages=messages, continue_final_message=True)
    await chat(client, messages=messages, continue_final_message=True, add_generation_prompt=False)
    expected = [BOS, TURN, *b"user:hi", TURN_END, TURN, *b"assistant:Sure, "]
    assert [request.tokens for request in engine.requests] == [expected] * 2
    tokens = (await client.post("/tokenize", json={"messages": messages, "continue_final_message": True})).json()
    assert tokens["tokens"] == expected


@pytest.mark.parametrize(
    ("messages", "more"),
    [(HI, {}), ([*HI, {"role": "assistant", "content": "a"}], {"add_generation_prompt": True})],
)
async def test_what_cannot_be_continued_is_refused(client, engine, messages, more):
    answered = error(await chat(client, messages=messages, continue_final_message=True, **more), 400)
    assert answered["param"] == "continue_final_message"
    assert engine.requests == []


# Streaming and not.

TEXTS = st.lists(st.binary(max_size=12), min_size=1, max_size=4)


def common(draw) -> dict:
    options = {
        "n": st.integers(1, 3),
        "stop": st.sampled_from(["a", "ab", ["b", "é"], "\ufffd"]),
        "stop_token_ids": st.sampled_from([[97], [0, 98]]),
        "max_tokens": st.integers(1, 14),
        "min_tokens": st.just(1),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "presence_penalty": st.just(1.0),
        "logit_bias": st.just({"3": 2}),
        "seed": st.just(3),
    }
    return {name: draw(values) for name, values in options.items() if draw(st.booleans())}


@st.composite
def completion_bodies(draw) -> dict:
    body = common(draw) | {"prompt": draw(st.sampled_from(["hé", ["x", "yy"], [104, 233], [[BOS, 7], [EOS]], [9]]))}
    body["echo"] = draw(st.booleans())
    body["logprobs"] = draw(st.sampled_from([None, 0, 2]))
    if body["echo"] and draw(st.booleans()):
        body |= {"max_tokens": 0, "min_tokens": 0}
    return body


@st.composite
def chat_bodies(draw) -> dict:
    body = common(draw)
    if draw(st.booleans()):
        body |= {"messages": [*HI, {"role": "assistant", "content": "so"}], "continue_final_message": True}
    if draw(st.booleans()):
        body |= {"logprobs": True, "top_logprobs": draw(st.sampled_from([None, 2]))}
    return body


def scripts(texts, pauses):
    """Each choice has a text of its own; now and then the engine pauses, or says a control token."""

    def script(request):
        data = texts[numbered(request) % len(texts)]
        steps = [part for byte in data for part in ([0.0, byte] if pauses and byte % 3 == 0 else [byte])]
        return Script([*steps, TURN, EOS, 65, 66], end="length")

    return script


def joined(events, index) -> dict:
    """A choice of a completion, put together from its chunks."""
    parts = [part for event in events for part in event["choices"] if part["index"] == index]
    whole = {"index": index, "text": "".join(part["text"] for part in parts), "logprobs": None}
    if any(part["logprobs"] is not None for part in parts):
        columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        given_scores = [part["logprobs"] for part in parts if part["logprobs"] is not None]
        whole["logprobs"] = {name: [value for scores in given_scores for value in scores[name]] for name in columns}
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    whole |= {"finish_reason": parts[-1]["finish_reason"], "stop_reason": parts[-1]["stop_reason"]}
    if any("prompt_token_ids" in part for part in parts):
        whole["token_ids"] = [token for part in parts for token in part.get("token_ids", [])]
        whole["prompt_token_ids"] = parts[0]["prompt_token_ids"]
    return whole


def scores_or_nothing(choice) -> dict:
    """A stream without a token has no place for scores, and one whose tokens were all cut off has empty ones."""
    if choice["logprobs"] is not None and not any(choice["logprobs"].values()):
        return choice | {"logprobs": None}
    return choice


@settings(max_examples=150, deadline=None)
@given(completion_bodies(), TEXTS, st.booleans())
async def test_a_completions_stream_joined_is_the_whole_answer_for_any_parameters(body, texts, pauses):
    engine = FakeEngine(scripts(texts, pauses))
    async with make_client(make_gateway(engine)) as client:
        whole = await answer(client, **body)
        events = chunks(await complete(client, **body, stream=True, stream_options={"include_usage": True}))
    half = len(engine.requests) // 2
    asked = [(r.tokens, r.sampling.logprobs, r.max_tokens, r.min_tokens, r.prompt_logprobs) for r in engine.requests]
    assert asked[:half] == asked[half:]
    for choice in whole["choices"]:
        assert scores_or_nothing(joined(events, choice["index"])) == scores_or_nothing(choice)
    assert events[-1]["usage"] == whole["usage"]


@settings(max_examples=150, deadline=None)
@given(chat_bodies(), TEXTS, st.booleans())
async def test_a_chats_stream_joined_is_the_whole_answer_for_any_parameters(body, texts, pauses):
    engine = FakeEngine(scripts(texts, pauses))
    async with make_client(make_gateway(engine)) as client:
        response = await chat(client, **body)
        assert response.status_code == 200, response.text
        whole = response.json()
        events = chunks(await chat(client, **body, stream=True, stream_options={"include_usage": True}))
    for choice in whole["choices"]:
        parts = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        scored = [entry for part in parts for entry in (part["logprobs"] or {"content": []})["content"]]
        assert scored == (choice["logprobs"] or {"content": []})["content"]
        assert [token for part in parts for token in part.get("token_ids", [])] == choice.get("token_ids", [])
        reasons = [part["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]
    assert events[0].get("prompt_token_ids") == whole.get("prompt_token_ids")
    assert events[-1]["usage"] == whole["usage"]
