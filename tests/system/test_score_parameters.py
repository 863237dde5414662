"""Parameters that change scores before a token is drawn, on the real model through the official client."""

from collections import Counter

import pytest

from tests.system.test_generation_parameters import STORY, address, client, complete  # noqa: F401  (two are fixtures)

LIST = "The colours are red, red, red, red, red,"


def ids(client, prompt=STORY, extra=None, **asked) -> list[int]:  # noqa: F811
    [choice] = complete(client, prompt, extra_body={"return_token_ids": True} | (extra or {}), **asked).choices
    return choice.token_ids


def test_a_bias_forbids_a_token_and_forces_one(client):  # noqa: F811
    first, *_ = ids(client)
    assert first not in ids(client, logit_bias={str(first): -100})
    assert ids(client, logit_bias={"345": 100}, max_tokens=4) == [345] * 4


def test_a_bias_leaves_log_probabilities_as_the_model_has_them(client):  # noqa: F811
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
def test_penalties_make_repetitions_rarer(client, asked, extra):  # noqa: F811
    def most_frequent(tokens: list[int]) -> int:
        return Counter(tokens).most_common(1)[0][1]

    plain = ids(client, LIST, {"ignore_eos": True}, max_tokens=40)
    penalized = ids(client, LIST, {"ignore_eos": True} | extra, max_tokens=40, **asked)
    assert most_frequent(penalized) < most_frequent(plain)


def test_a_token_is_not_drawn_again_where_its_repetition_costs_too_much(client):  # noqa: F811
    tokens = ids(client, LIST, {"ignore_eos": True, "repetition_penalty": 100}, max_tokens=20)
    assert len(set(tokens)) == len(tokens)


def test_an_answer_has_its_least_number_of_tokens(client):  # noqa: F811
    """A stop token that would come first is not drawn before that, but then it is."""
    first, *_ = ids(client)
    assert ids(client, extra={"stop_token_ids": [first]}) == [first]
    bias = {"logit_bias": {str(first): 100}}
    forced = ids(client, extra={"stop_token_ids": [first], "min_tokens": 5}, max_tokens=20, **bias)
    assert len(forced) == 6
    assert forced.index(first) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_its_own_penalties(client, stream):  # noqa: F811
    """A choice answers as it would alone, with its seed, whatever the others have said."""
    asked = {"temperature": 0.8, "seed": 3, "frequency_penalty": 1.5, "extra_body": {"repetition_penalty": 1.2}}
    alone = complete(client, LIST, **asked).choices[0].text
    several = complete(client, LIST, n=3, stream=stream, **asked)
    parts = [part for chunk in several for part in chunk.choices] if stream else several.choices
    texts = ["".join(part.text for part in parts if part.index == index) for index in range(3)]
    assert texts[0] == alone
    assert len(set(texts)) == 3


def test_scored_streams_joined_are_the_whole_answer(client):  # noqa: F811
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
