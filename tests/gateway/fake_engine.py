"""An engine whose answers are scripted, and the small models, gateways and clients around it."""

import asyncio
import os
import tempfile
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from lightwell.engine.request import Request
from lightwell.errors import Overloaded
from lightwell.events import Admitted, Embedded, Event, Finished, PromptScored, Queued, Sampled, TokenLogprobs
from lightwell.gateway.app import create_app
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.served import ServedModel
from lightwell.gateway.store import Store
from lightwell.host.client import EngineStatus, Output
from lightwell.host.messages import Hello
from lightwell.text.chat import ChatTemplate
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import BYTE_CHARACTERS, ControlToken, Vocabulary
from tests.databases import new_database

BOS, EOS, TURN, TURN_END = 256, 257, 258, 259
NAMES = ("<bos>", "<eos>", "<|turn|>", "<|end|>")
DIMENSIONS = 4
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message.role }}:{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)
POSTGRESQL = "LIGHTWELL_TEST_POSTGRESQL"  # the address of a server
Step = int | float | BaseException | Awaitable[Any]


def byte_tokenizer(*, add_bos: bool = True) -> Tokenizer:
    """One token for each byte, and four control tokens."""
    vocabulary = dict(BYTE_CHARACTERS)
    model = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    pieces = [bytes([byte]) for byte in range(256)] + [name.encode() for name in NAMES]
    control = tuple(ControlToken(256 + n, name) for n, name in enumerate(NAMES))
    return Tokenizer(model, Vocabulary(pieces, control, BOS, EOS, add_bos, frozenset({EOS, TURN_END})))


@dataclass
class Script:
    """What the engine does for one request: an int is a token, a float a pause in seconds, an exception is raised,
    anything else is awaited. A stop token or the request's max_tokens end it earlier."""

    steps: Sequence[Step] = ()
    end: str = "stop"
    cached_tokens: int = 0


def says(text: str | bytes, **more: Any) -> Script:
    """An answer of one token a byte, ended by EOS."""
    return Script([*(text.encode() if isinstance(text, str) else text), EOS], **more)


@dataclass
class FakeEngine:
    """An EngineClient. ``script`` is asked for every request; what happened to the requests is in the lists."""

    script: Callable[[Request], Script] = lambda request: says("Hello world")
    context_tokens: int = 512
    kv_blocks: int = 1000
    status: EngineStatus = field(default_factory=lambda: EngineStatus("ready"))
    requests: list[Request] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    readers: list[Callable[[list[Event]], None]] = field(default_factory=list)
    clock: float = 0.0
    refuses: bool = False  # before it takes anything up, as one that restarts and has too many waiting does

    @property
    def hello(self) -> Hello:
        if self.status.phase == "loading":
            raise Overloaded("The model is still loading.")
        return Hello("tiny", self.context_tokens, self.kv_blocks, 32, 1000, 0, 0, {"isa": "portable"}, DIMENSIONS)

    def subscribe(self, reader: Callable[[list[Event]], None]) -> None:
        self.readers.append(reader)

    async def stream(self, request: Request) -> AsyncIterator[Output]:
        self.requests.append(request)
        if self.refuses:
            raise Overloaded("Too many requests wait for the engine.")
        self.open.add(request.id)
        script, ended = self.script(request), False
        self._emit(Queued(self._now(), request.id, len(request.tokens), request.max_tokens, request.priority))
        self._emit(Admitted(self._now(), request.id, script.cached_tokens, 0.0, False))
        produced, end = 0, "length" if request.max_tokens == 0 and not request.pooling else script.end
        try:
            for event in self._prompt_scores(request):
                yield event
            for step in script.steps if request.max_tokens or request.pooling else ():
                if request.pooling and isinstance(step, int):
                    continue
                if not isinstance(step, int):
                    await _wait(step)
                    continue
                produced += 1
                yield self._emit(Sampled(self._now(), request.id, step, _logprobs(request, step)))
                if step in request.stop_tokens or produced == request.max_tokens:
                    end = "stop" if step in request.stop_tokens else "length"
                    break
            if request.pooling:
                yield self._emit(Embedded(self._now(), request.id, vector_of(request.tokens)))
            ended = True
            yield self._emit(self._finished(request, script, end, produced))
        finally:
            self.open.discard(request.id)
            if not ended:
                self.aborted.append(request.id)
                self._emit(self._finished(request, script, "abort", produced))

    def _prompt_scores(self, request: Request) -> list[PromptScored]:
        """In two parts, as where a prompt takes two steps."""
        if (count := request.prompt_logprobs) is None:
            return []
        scores = [_score(token, count) for token in request.tokens[1:]]
        half = len(scores) // 2
        parts = [(1, scores[:half]), (1 + half, scores[half:])]
        return [self._emit(PromptScored(self._now(), request.id, start, part)) for start, part in parts if part]

    def _finished(self, request: Request, script: Script, end: str, produced: int) -> Finished:
        return Finished(self._now(), request.id, end, len(request.tokens), script.cached_tokens, produced)

    def _now(self) -> float:
        self.clock += 0.01
        return self.clock

    def _emit(self, event: Any) -> Any:
        for reader in self.readers:
            reader([event])
        return event


def vector_of(tokens: list[int]) -> bytes:
    """Of DIMENSIONS numbers, none of which a decimal fraction holds exactly. Other prompts have others."""
    return array("f", [len(tokens) / 3, sum(tokens) / 7, tokens[-1] / 9, -0.1]).tobytes()


async def _wait(step: Any) -> None:
    if isinstance(step, BaseException):
        raise step
    if isinstance(step, float):
        await asyncio.sleep(step)
    else:
        await step


def _logprobs(request: Request, token: int) -> TokenLogprobs | None:
    return None if request.sampling.logprobs is None else _score(token, request.sampling.logprobs)


def _score(token: int, count: int) -> TokenLogprobs:
    """The chosen token is the second best of the candidates, so that the two cannot be taken for each other."""
    ranked = [(token + 1) % 256, token, *((token + n) % 256 for n in range(2, 20))][:count]
    return TokenLogprobs(-1.0, ranked, [-0.5 * (n + 1) for n in range(len(ranked))])


def make_gateway(
    engine: FakeEngine, *, chat: bool = True, add_bos: bool = True, store: Path | None = None, **more: Any
) -> Gateway:
    template = ChatTemplate(TEMPLATE) if chat else None
    served = ServedModel(engine, byte_tokenizer(add_bos=add_bos), template, ["tiny", "alias"], **more)
    return Gateway([served], Store(store or _new_store()))


def _new_store() -> str | Path:
    """A file of its own, or a database of its own on the server that the tests are to run on."""
    if server := os.environ.get(POSTGRESQL):
        return new_database(server)
    return Path(tempfile.mkdtemp(prefix="lightwell-")) / "store.db"


def make_client(gateway: Gateway) -> httpx.AsyncClient:
    """Calls the app without a socket. Streams arrive whole, when they have ended."""
    transport = httpx.ASGITransport(create_app(gateway), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def sse(text: str) -> list[str]:
    """The data of each event; the text must be nothing but events."""
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]
