"""The server under load, as a process of its own: ``python -m bench.load.server gateway|starlette RATE``.

It says its port on standard output. For each line of standard input it says when each token of the answers that ended
since was made, and what its process took of time; the end of the input ends it.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from bench.load.paced import ALPHABET, PacedEngine
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.engine.request import Request as EngineRequest
from lightwell.events import Sampled
from lightwell.gateway.app import create_app
from lightwell.gateway.drain import Drain
from lightwell.gateway.fair_queue import FairQueue
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.listen import listen
from lightwell.gateway.serve import serve
from lightwell.gateway.served import ServedModel
from lightwell.gateway.store import Store
from lightwell.sampling.params import SamplingParams
from lightwell.text import load_template, load_tokenizer

_CONTEXT = 8192
_MOST = 10_000  # streams


def gateway_over(engine: PacedEngine, folder: Path) -> Gateway:
    """The whole gateway as ``lightwell serve`` makes it: limits, the line, the ledger and grouping stand around."""
    checkpoint = open_checkpoint(pull("smollm2"))
    served = ServedModel(engine, load_tokenizer(checkpoint), load_template(checkpoint), ["paced"])
    return Gateway([served], Store(str(folder / "store.db")), line=FairQueue(_MOST, _MOST))


def bare(engine: PacedEngine) -> ASGIApp:
    """What Starlette alone takes for the same bytes."""
    numbers = iter(range(10**9))

    async def completions(request: Request) -> StreamingResponse:
        asked = await request.json()
        name = f"cmpl-{next(numbers)}"

        async def chunks() -> AsyncIterator[bytes]:
            asking = EngineRequest(name, [1], SamplingParams(), asked["max_tokens"])
            number = 0
            async for event in engine.stream(asking):
                if isinstance(event, Sampled):
                    choice = {"index": 0, "text": ALPHABET[number % len(ALPHABET)], "finish_reason": None}
                    yield b"data: " + msgspec.json.encode({"id": name, "choices": [choice]}) + b"\n\n"
                    number += 1
            yield b"data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])


async def main(kind: str, rate: float) -> None:
    tokenizer = load_tokenizer(open_checkpoint(pull("smollm2")))
    letters = [tokenizer.encode_continuation(letter)[0] for letter in ALPHABET]
    engine = PacedEngine(letters, rate, _CONTEXT)
    with tempfile.TemporaryDirectory() as folder:
        background = [asyncio.create_task(engine.run())]
        drain = Drain()
        app = bare(engine)
        if kind == "gateway":
            gateway = gateway_over(engine, Path(folder))
            app, drain = create_app(gateway), gateway.drain
            background.append(asyncio.create_task(gateway.ledger.run()))
        listener = listen("127.0.0.1", 0)
        serving = asyncio.create_task(serve(app, listener, drain, 5.0))
        print(listener.getsockname()[1], flush=True)
        await _until_told(engine)
        serving.cancel()
        for task in background:
            task.cancel()


async def _until_told(engine: PacedEngine) -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        facts: dict[str, Any] = {"cpu_seconds": time.process_time(), "made_at": engine.made_at}
        print(json.dumps(facts), flush=True)
        engine.made_at = {}


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2])))
