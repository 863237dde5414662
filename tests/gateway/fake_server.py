"""A whole server with a scripted engine, as a process: ``python -m tests.gateway.fake_server TIMEOUT [STORE]``.

It says its port on standard output, and how it ended. The prompt decides the answer: "slow N" takes N seconds. With a
store it works off batches.
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from lightwell.engine.request import Request
from lightwell.gateway.app import create_app
from lightwell.gateway.batches.runner import BatchRunner
from lightwell.gateway.listen import listen
from lightwell.gateway.serve import serve
from tests.gateway.fake_engine import EOS, FakeEngine, Script, make_gateway


def script(request: Request) -> Script:
    words = bytes(token for token in request.tokens if token < 256).decode().split()
    pauses = [0.05] * round(float(words[words.index("slow") + 1]) / 0.05) if "slow" in words else []
    return Script([*b"begin ", *pauses, *b"end", EOS])


async def main(shutdown_timeout: float, store: str | None) -> None:
    listener = listen("127.0.0.1", 0)
    engine = FakeEngine(script)
    gateway = make_gateway(engine, store=Path(store) if store else None)
    batches = asyncio.create_task(BatchRunner(gateway, at_once=4).run())
    print(listener.getsockname()[1], flush=True)
    await serve(create_app(gateway), listener, gateway.drain, shutdown_timeout)
    batches.cancel()
    await asyncio.wait({batches})
    await gateway.store.close()
    print(f"open={len(engine.open)} aborted={len(engine.aborted)}", flush=True)


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]), *(sys.argv[2:] or [None])))
