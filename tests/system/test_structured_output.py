"""Answers of a real model in a form that was asked for, on a real server, with the official client."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.system.test_server import server

pytestmark = pytest.mark.slow

ASK = [{"role": "user", "content": "Tell me about a city, its country and how many people live there."}]


class City(BaseModel):
    name: str
    continent: Literal["Africa", "Asia", "Europe", "America"]
    people: int


@pytest.fixture(scope="module", params=[(), ("--speculative-config", "{}")], ids=["plain", "with guesses"])
def client(smollm2, tmp_path_factory, request):
    log = tmp_path_factory.mktemp("log") / "log"
    with server(str(smollm2), "--served-model-name", "smollm2", *request.param, log=log) as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def ask(client, **more):
    return client.chat.completions.create(model="smollm2", messages=ASK, max_tokens=200, **more).choices[0]


def test_the_clients_parse_helper_works_unchanged(client):
    answer = client.chat.completions.parse(model="smollm2", messages=ASK, response_format=City, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, City)
    with client.chat.completions.stream(model="smollm2", messages=ASK, response_format=City, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize("seed", range(3))
def test_every_form_is_kept_beside_free_answers(client, seed):
    forms = [
        {"response_format": {"type": "json_object"}},
        {"extra_body": {"guided_regex": "[A-Z][a-z]{2,10}, [0-9]{3,7} people"}},
        {"extra_body": {"guided_choice": ["Paris", "Oslo"]}},
        {"extra_body": {"guided_grammar": 'start: "(" /[a-z]+/ (", " /[a-z]+/){0,3} ")"\n'}},
        {},
    ]
    with ThreadPoolExecutor(len(forms)) as pool:
        answers = list(pool.map(lambda form: ask(client, temperature=1, seed=seed, **form), forms))
    texts = [answer.message.content for answer in answers]
    if answers[0].finish_reason == "stop":
        assert isinstance(json.loads(texts[0]), dict)
    assert re.fullmatch("[A-Z][a-z]{2,10}, [0-9]{3,7} people", texts[1])
    assert texts[2] in ("Paris", "Oslo")
    assert re.fullmatch(r"\([a-z]+(, [a-z]+){0,3}\)", texts[3]) or answers[3].finish_reason == "length"
    assert [ask(client, temperature=1, seed=seed, **form).message.content for form in forms] == texts


def test_a_schema_that_is_refused_disturbs_nobody(client):
    with ThreadPoolExecutor(2) as pool:
        free = pool.submit(ask, client, temperature=0)
        for schema in ({"type": "array", "uniqueItems": True}, {"type": "integer", "oneOf": [{}, {}]}, {"type": 5}):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            with pytest.raises(openai.BadRequestError, match="response_format"):
                ask(client, response_format=form)
        assert free.result().message.content == ask(client, temperature=0).message.content
