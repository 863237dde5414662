"""What a request can ask, on the real model through the official client: choices, scores, stops, penalties and more."""

import random
from collections import Counter

import httpx
import openai
import pytest

from tests.system.test_server import server

PROMPT = "The capital of France is"
STORY = "Once upon a time, in a village by the sea,"


@pytest.fixture(scope="module")
def address(smollm2, tmp_path_factory):
    flags = ("--served-model-name", "small", "--max-model-len", "1024", "--kv-cache-memory", "128MiB")
    with server(str(smollm2), *flags, log=tmp_path_factory.mktemp("log") / "log") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0, timeout=300)


def complete(client, prompt=STORY, **asked):
    asked = {"max_tokens": 16, "temperature": 0, "extra_body": {}} | asked
    return client.completions.create(model="small", prompt=prompt, **asked)


def text_of(client, prompt=STORY, **asked) -> str:
    return complete(client, prompt, **asked).choices[0].text


def test_the_first_of_several_choices_is_the_only_one_of_one(client):
    asked = {"temperature": 0.9, "seed": 5}
    alone = text_of(client, **asked)
    several = complete(client, n=4, **asked)
    assert several.choices[0].text == alone
    assert len({choice.text for choice in several.choices}) == 4
    assert [choice.text for choice in complete(client, n=4, **asked).choices] == [c.text for c in several.choices]
    assert several.usage.completion_tokens <= 64
    assert several.usage.prompt_tokens == complete(client, **asked).usage.prompt_tokens


def test_the_best_of_several_is_the_likeliest_of_them(client):
    asked = {"temperature": 1, "seed": 9, "logprobs": 0}
    answers = complete(client, n=5, **asked).choices
    means = {choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens) for choice in answers}
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    best = complete(client, n=2, best_of=5, **asked)
    assert [choice.text for choice in best.choices] == ranked[:2]
    assert best.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in answers)


def test_an_answer_scored_as_a_prompt_has_the_scores_it_was_drawn_with(client):
    """What lm-eval relies on: decoding and scoring are the same model."""
    ask = {"logprobs": 2, "extra_body": {"return_token_ids": True}}
    [drawn] = complete(client, **ask).choices
    whole = drawn.prompt_token_ids + drawn.token_ids
    for max_tokens in (0, 1):
        [scored] = complete(client, [whole], echo=True, max_tokens=max_tokens, logprobs=2).choices
        scores = scored.logprobs
        begin, end = len(drawn.prompt_token_ids), len(whole)
        assert len(scores.tokens) == end + max_tokens
        assert scores.token_logprobs[0] is None
        assert scores.token_logprobs[begin:end] == drawn.logprobs.token_logprobs
        assert scores.tokens[begin:end] == drawn.logprobs.tokens
        assert all(
            logprob == max(top.values())
            for logprob, top in zip(scores.token_logprobs[begin:end], scores.top_logprobs[begin:end], strict=True)
        )
        assert scored.text.startswith(STORY + drawn.text)


def test_likelier_continuations_score_higher(client, address):
    def likelihood(continuation: str) -> float:
        tokens = [
            httpx.post(f"{address}/tokenize", json={"prompt": text}).json()["tokens"]
            for text in (PROMPT, PROMPT + continuation)
        ]
        [choice] = complete(client, [tokens[1]], echo=True, max_tokens=0, logprobs=1).choices
        return sum(choice.logprobs.token_logprobs[len(tokens[0]) :])

    assert likelihood(" Paris") > likelihood(" London") > likelihood(" banana")


def test_echoes_of_several_prompts_and_choices(client):
    prompts = [STORY, PROMPT]
    whole = complete(client, prompts, n=2, echo=True, logprobs=0, temperature=0.8, seed=1, max_tokens=4)
    assert [choice.text.startswith(prompts[n // 2]) for n, choice in enumerate(whole.choices)] == [True] * 4
    for choice in whole.choices:
        scores = choice.logprobs
        assert all(
            choice.text[offset:].startswith(token)
            for token, offset in zip(scores.tokens, scores.text_offset, strict=True)
        )
    assert whole.choices[0].logprobs.token_logprobs[:5] == whole.choices[1].logprobs.token_logprobs[:5]


def test_prompts_as_token_ids_are_those_of_their_text(client, address):
    tokens = httpx.post(f"{address}/tokenize", json={"prompt": STORY}).json()["tokens"]
    assert text_of(client, tokens) == text_of(client, [tokens]) == text_of(client, STORY)


def test_an_answer_says_what_stopped_it(client):
    [whole] = complete(client, extra_body={"return_token_ids": True}).choices
    word = whole.text.split()[3]
    [cut] = complete(client, stop=[word, "\0"]).choices
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (whole.text.partition(word)[0], "stop", word)
    token = whole.token_ids[5]
    extra = {"stop_token_ids": [token], "return_token_ids": True}
    [cut] = complete(client, extra_body=extra).choices
    assert (cut.finish_reason, cut.stop_reason) == ("stop", token)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]


def test_token_ids_are_the_texts(client, address):
    answer = client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "Say something about the sea."}],
        max_tokens=12,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    text = httpx.post(f"{address}/detokenize", json={"tokens": answer.choices[0].token_ids}).json()["prompt"]
    assert text.removesuffix("<|im_end|>") == answer.choices[0].message.content
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens


def test_a_message_is_continued(client):
    question = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "I am sure that the capital of France is"}
    answer = client.chat.completions.create(
        model="small",
        messages=[question, begun],
        max_tokens=4,
        temperature=0,
        extra_body={"continue_final_message": True},
    )
    assert answer.choices[0].message.content.lstrip().startswith("Paris")


def test_salts_keep_cached_prompts_apart(client):
    prompt = "salted " * 80

    def cached(salt: str) -> int:
        answer = complete(client, prompt, max_tokens=1, extra_body={"cache_salt": salt})
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached("a"), cached("b")] == [0, 0]
    assert cached("a") > 0


def draw_parameters(draw: random.Random) -> dict:
    """Any of what can be asked together, without what changes scores."""
    possible = {
        "n": draw.randint(1, 3),
        "seed": draw.randrange(2**32),
        "temperature": draw.choice([0, 0.7, 1.3]),
        "top_p": draw.choice([0.5, 0.9]),
        "stop": draw.choice([",", ["the", "a"], "."]),
        "logprobs": draw.choice([0, 3]),
        "echo": True,
        "max_tokens": draw.choice([1, 5, 20]),
    }
    extra = {
        "top_k": draw.randint(1, 50),
        "min_p": 0.05,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "return_token_ids": True,
    }
    asked = {name: value for name, value in possible.items() if draw.random() < 0.5}
    return {"seed": 3} | asked | {"extra_body": {k: v for k, v in extra.items() if draw.random() < 0.5}}


@pytest.mark.parametrize("number", range(12))
def test_streams_joined_are_the_whole_answer(client, number):
    asked = draw_parameters(random.Random(number))
    whole = complete(client, **asked)
    chunks = list(complete(client, **asked, stream=True))
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == (choice.finish_reason, choice.stop_reason)
        if "logprobs" in asked:
            found = [logprob for part in parts if part.logprobs for logprob in part.logprobs.token_logprobs]
            assert found == choice.logprobs.token_logprobs
        if "return_token_ids" in asked["extra_body"]:
            assert [token for part in parts for token in getattr(part, "token_ids", [])] == choice.token_ids


# ---- parameters that change scores before a token is drawn ----

LIST = "The colours are red, red, red, red, red,"


def ids(client, prompt=STORY, extra=None, **asked) -> list[int]:
    [choice] = complete(client, prompt, extra_body={"return_token_ids": True} | (extra or {}), **asked).choices
    return choice.token_ids


def test_a_bias_forbids_a_token_and_forces_one(client):
    first, *_ = ids(client)
    assert first not in ids(client, logit_bias={str(first): -100})
    assert ids(client, logit_bias={"345": 100}, max_tokens=4) == [345] * 4


def test_a_bias_leaves_log_probabilities_as_the_model_has_them(client):
    [plain] = complete(client, max_tokens=1, logprobs=2).choices
    [biased] = complete(client, max_tokens=1, logprobs=2, logit_bias={"345": 100}).choices
    assert plain.logprobs.token_logprobs[0] == max(plain.logprobs.top_logprobs[0].values())
    assert biased.logprobs.token_logprobs[0] < min(plain.logprobs.top_logprobs[0].values())


@pytest.mark.parametrize(
    ("asked", "extra"),
    [
        ({"frequency_penalty": 2}, {}),
        ({"presence_penalty": 2}, {}),
        ({}, {"repetition_penalty": 1.5}),
    ],
    ids=["frequency", "presence", "repetition"],
)
def test_penalties_make_repetitions_rarer(client, asked, extra):
    def most_frequent(tokens: list[int]) -> int:
        return Counter(tokens).most_common(1)[0][1]

    plain = ids(client, LIST, {"ignore_eos": True}, max_tokens=40)
    penalized = ids(client, LIST, {"ignore_eos": True} | extra, max_tokens=40, **asked)
    assert most_frequent(penalized) < most_frequent(plain)


def test_a_token_is_not_drawn_again_where_its_repetition_costs_too_much(client):
    tokens = ids(client, LIST, {"ignore_eos": True, "repetition_penalty": 100}, max_tokens=20)
    assert len(set(tokens)) == len(tokens)


def test_an_answer_has_its_least_number_of_tokens(client):
    """A stop token that would come first is not drawn before that, but then it is."""
    first, *_ = ids(client)
    assert ids(client, extra={"stop_token_ids": [first]}) == [first]
    bias = {"logit_bias": {str(first): 100}}
    forced = ids(client, extra={"stop_token_ids": [first], "min_tokens": 5}, max_tokens=20, **bias)
    assert len(forced) == 6
    assert forced.index(first) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_its_own_penalties(client, stream):
    """A choice answers as it would alone, with its seed, whatever the others have said."""
    asked = {"temperature": 0.8, "seed": 3, "frequency_penalty": 1.5, "extra_body": {"repetition_penalty": 1.2}}
    alone = complete(client, LIST, **asked).choices[0].text
    several = complete(client, LIST, n=3, stream=stream, **asked)
    parts = [part for chunk in several for part in chunk.choices] if stream else several.choices
    texts = ["".join(part.text for part in parts if part.index == index) for index in range(3)]
    assert texts[0] == alone
    assert len(set(texts)) == 3


def test_scored_streams_joined_are_the_whole_answer(client):
    asked = {
        "n": 2,
        "temperature": 0.7,
        "seed": 8,
        "presence_penalty": 1,
        "logit_bias": {"28": -5},
        "echo": True,
        "logprobs": 1,
        "extra_body": {"min_tokens": 4, "min_p": 0.02},
    }
    whole = complete(client, **asked)
    chunks = list(complete(client, **asked, stream=True))
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        found = [logprob for part in parts if part.logprobs for logprob in part.logprobs.token_logprobs]
        assert found == choice.logprobs.token_logprobs
