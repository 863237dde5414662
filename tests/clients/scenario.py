"""The one scenario that every official client passes: what is asked, and what must be true of the answers.

A client is a small adapter (``Client``) over its own library; what only some APIs have is tested beside their adapter.
"""

import abc
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

QUESTION = "Name one thing that can be seen at sea."
SYSTEM = "You are brief."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Told:
    """An answer in words that all APIs share. ``end``: "done" or "length"."""

    text: str
    end: str
    prompt_tokens: int
    output_tokens: int
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class Client(abc.ABC):
    """Turns are (role, text). ``errors`` is the library, which names its exceptions as all of them do: RateLimitError
    for a 429, and so on."""

    errors: ModuleType

    def __init__(self, address: str, key: str, retries: int = 0) -> None:
        self.address = address
        self.library = self.connected(address, key, retries)

    def with_key(self, key: str, retries: int) -> "Client":
        return type(self)(self.address, key, retries)

    @abc.abstractmethod
    def connected(self, address: str, key: str, retries: int) -> Any: ...

    @abc.abstractmethod
    def ask(self, turns: list[tuple[str, str]], *, system: str = "", most: int = 16, **options: Any) -> Told: ...

    @abc.abstractmethod
    def stream(self, turns: list[tuple[str, str]], *, most: int = 16) -> Iterator[str]: ...

    @abc.abstractmethod
    def call(self, turns: list[tuple[str, str]], name: str, parameters: dict[str, Any]) -> Told: ...

    @abc.abstractmethod
    def structured(self, turns: list[tuple[str, str]], schema: dict[str, Any]) -> str: ...


def answers(client: Client) -> None:
    told = client.ask([("user", QUESTION)], system=SYSTEM, most=8)
    assert told.text.strip()
    assert told.end in ("done", "length")
    assert told.prompt_tokens > 10
    assert 0 < told.output_tokens <= 8


def streams_what_it_answers_at_once(client: Client) -> None:
    told = client.ask([("user", QUESTION)], most=24)
    pieces = list(client.stream([("user", QUESTION)], most=24))
    assert "".join(pieces) == told.text
    assert len(pieces) > 2


def remembers_the_history(client: Client) -> None:
    """A longer conversation is a longer prompt, of which the beginning was read before."""
    first = client.ask([("user", QUESTION)])
    second = client.ask([("user", QUESTION), ("assistant", first.text), ("user", "And another one?")])
    assert second.prompt_tokens > first.prompt_tokens
    assert second.text


def calls_a_tool(client: Client) -> None:
    told = client.call([("user", "What is the weather in Oslo?")], "weather", WEATHER)
    [(name, arguments)] = told.calls
    assert name == "weather"
    assert arguments.keys() == {"city", "unit"}


def answers_in_a_form(client: Client) -> None:
    person = json.loads(client.structured([("user", "Describe a person as JSON.")], PERSON))
    assert person.keys() == {"name", "age"}
    assert 0 <= person["age"] <= 120


def explains_errors(client: Client) -> None:
    """Each as the exception that the library has for it, with words that say what to do."""
    asked: list[tuple[type[Exception], dict[str, Any], str]] = [
        (client.errors.NotFoundError, {"model": "no-such-model"}, "smollm2"),
        (client.errors.BadRequestError, {"temperature": 99}, "temperature"),
        (client.errors.BadRequestError, {"most": 20_000}, "tokens"),  # more is refused by one of the libraries itself
    ]
    for kind, options, words in asked:
        with pytest.raises(kind, match=words):
            client.ask([("user", QUESTION)], **options)
    with pytest.raises(client.errors.AuthenticationError, match="key"):
        client.with_key("lw-not-a-key", 0).ask([("user", QUESTION)])


def waits_out_a_limit(client: Client, key: str) -> None:
    """``key`` may have one request at a time: a second one is refused, and passes when the library asks again."""
    stream = client.with_key(key, 0).stream([("user", "Count from one to a hundred.")], most=200)
    next(stream)
    with pytest.raises(client.errors.RateLimitError, match="at once"):
        client.with_key(key, 0).ask([("user", QUESTION)])
    told: list[Told] = []
    second = threading.Thread(target=lambda: told.append(client.with_key(key, 8).ask([("user", QUESTION)])))
    second.start()
    for _ in stream:
        pass
    second.join(120)
    assert told
    assert told[0].text


SCENARIO = [
    answers,
    streams_what_it_answers_at_once,
    remembers_the_history,
    calls_a_tool,
    answers_in_a_form,
    explains_errors,
]
