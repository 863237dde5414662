"""From requests to deltas: the one pipeline under every generating endpoint, streaming or not."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec

from lightwell.engine.request import Request
from lightwell.errors import LightwellError
from lightwell.gateway.answer import Answer, Delta, join, usage
from lightwell.gateway.caller import Caller
from lightwell.gateway.prices import Price
from lightwell.gateway.served import ServedModel
from lightwell.gateway.usage import Usage
from lightwell.gateway.window import ContextReport
from lightwell.host.client import EngineClient, Output
from lightwell.units import Seconds, Tokens

_MOST_HELD = 16_384  # events of one answer that wait for its client
CONTEXT_HEADER = "x-lightwell-context"


@dataclass
class Generation:
    """One API request on its way: ``answers`` has ``candidates`` for each prompt, of which ``choices`` are shown.

    ``model`` is the name that it was asked by, ``api`` the kind of request ("chat", "completion", ...). ``headers`` go
    with the response; they are complete once its first deltas are there.
    """

    id: str
    created: int  # seconds since 1970
    served: ServedModel
    model: str
    caller: Caller
    api: str
    answers: list[Answer]
    candidates: int = 1
    choices: int = 1
    include_usage: bool = False
    usage: dict[str, Any] | None = None  # known once every choice has ended
    headers: dict[str, str] = field(default_factory=dict)
    first_token_at: Seconds | None = None  # since 1970
    price: Price | None = None  # in force when it came; a change meanwhile is for later ones
    row: asyncio.Future[Usage] | None = None  # the ledger's, known soon after its end; None until it was let in
    keeps_row: bool = False  # whoever asked writes the row, and not the ledger
    begun_prompts: tuple[Tokens, Tokens] = (0, 0)  # once it has ended: of those admitted, and thereof cached
    batch: bool = False  # nobody waits for it: it runs behind all others, at a discount
    context: ContextReport | None = None  # where the conversation was not taken as it came
    most_at_once: int | None = None  # of its answers, in the engine; None for all

    @property
    def width(self) -> int:
        """How many of its answers are in the engine at once, at most."""
        answers = len(self.answers)
        return answers if self.most_at_once is None else min(answers, self.most_at_once)

    def cached_tokens(self) -> Tokens:
        """Of its prompts, as far as they have begun: known while it runs, and afterwards."""
        if self.usage is not None:
            cached: Tokens = self.usage["prompt_tokens_details"]["cached_tokens"]
            return cached
        requests = [answer.request for answer in self.answers if not answer.request.fork_of]
        return sum(self.served.cached.of(request.id) for request in requests)

    def used_prompts(self) -> tuple[Tokens, Tokens]:
        """Tokens of its prompts that count, and how many thereof were cached, once it has ended. A prompt that the
        engine has not taken up by then does not count."""
        return self.begun_prompts if self.usage is None else (self.usage["prompt_tokens"], self.cached_tokens())

    def report(self, context: ContextReport) -> None:
        self.context = context
        self.headers[CONTEXT_HEADER] = msgspec.json.encode(context).decode()


async def run(generation: Generation) -> AsyncGenerator[list[Delta], None]:
    """Yield the choices' deltas as they come, what is ready at once together; then ``generation.usage`` is set.

    Leaving early aborts the engine's requests. Raises what EngineClient.stream raises.
    """
    model = generation.served
    writing = {answer.index for answer in generation.answers}
    async with _followed(generation) as arrivals:
        while writing:
            deltas = [generation.answers[index].feed(events) for index, events in await arrivals.next()]
            for delta in deltas:
                if delta.finish_reason is not None:
                    writing.discard(delta.index)
                    _stop(model, generation.answers[delta.index], arrivals)
            if not writing:
                generation.usage = _usage(generation)
            generation.first_token_at = generation.first_token_at or time.time()
            yield deltas


@asynccontextmanager
async def _followed(generation: Generation) -> "AsyncGenerator[_Arrivals]":
    """Its requests in the engine for the time of the block; afterwards it is known what became of their prompts."""
    model, requests = generation.served, [answer.request for answer in generation.answers]
    with model.cached.watch([request.id for request in requests]):
        try:
            async with _Arrivals(model.engine, requests, generation.width) as arrivals:
                yield arrivals
        finally:
            begun = [each for each in requests if not each.fork_of and model.cached.admitted(each.id)]
            cached = sum(model.cached.of(each.id) for each in begun)
            generation.begun_prompts = sum(len(each.tokens) for each in begun), cached


def _stop(model: ServedModel, answer: Answer, arrivals: "_Arrivals") -> None:
    """Where its text ended the answer, by a stop string or a call, the engine does not know yet."""
    if answer.ended_here:
        model.metrics.stopped(answer.request.id)
        arrivals.leave(answer.index)


def _usage(generation: Generation) -> dict[str, Any]:
    return usage(generation.answers, generation.cached_tokens())


async def joined(deltas: AsyncGenerator[list[Delta], None], answers: int) -> list[Delta]:
    """The whole answers: for each, all of its deltas as one."""
    whole = [Delta(index, "") for index in range(answers)]
    async with aclosing(deltas):
        async for batch in deltas:
            for delta in batch:
                join(whole[delta.index], delta)
    return whole


class ClientTooSlow(LightwellError):
    """It reads far slower than the answer is written; what waits for it would fill the memory."""

    status = 503
    code = "client_too_slow"

    def __init__(self) -> None:
        super().__init__(f"The client has not read for {_MOST_HELD} tokens. Read faster, or ask for shorter answers.")


class _Arrivals:
    """What several engine requests have said since the last look. Leaving the block aborts those still open.

    Where there are more than ``width``, the later ones are made as the earlier ones end."""

    def __init__(self, engine: EngineClient, requests: list[Request], width: int) -> None:
        self._engine, self._requests = engine, requests
        self._room = asyncio.Semaphore(width)
        self._inbox: dict[int, list[Output]] = {}
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._readers = [asyncio.create_task(self._read(*numbered)) for numbered in enumerate(self._requests)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.wait(self._readers)

    async def next(self) -> list[tuple[int, list[Output]]]:
        """Wait until there is something, and take all that is there; a failure comes after what came before it."""
        await self._arrived.wait()
        if not self._inbox and self._failure is not None:
            raise self._failure
        if self._failure is None:
            self._arrived.clear()
        taken, self._inbox = self._inbox, {}
        return list(taken.items())

    def leave(self, index: int) -> None:
        self._readers[index].cancel()
        self._inbox.pop(index, None)

    async def _read(self, index: int, request: Request) -> None:
        try:
            async with self._room:
                async for event in self._engine.stream(request):
                    inbox = self._inbox.setdefault(index, [])
                    inbox.append(event)
                    self._arrived.set()
                    if len(inbox) > _MOST_HELD:
                        raise ClientTooSlow
        except Exception as error:
            self._failure = error
            self._arrived.set()
