"""An engine in the caller's own process, one request at a time: for ``run``, ``chat`` and ``bench``."""

from collections.abc import Generator

from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.events import Finished, Rejected, Sampled
from lightwell.host.rejection import rejection


def generate(engine: Engine, request: Request) -> Generator[Sampled | Finished, None, None]:
    """Yield the request's tokens as they come; the last item is Finished. Closing the iterator aborts the request.

    Raises ContextLengthExceeded or Overloaded where the engine rejects it.
    """
    _, cursor, _ = engine.log.read(0)
    engine.submit(request)
    try:
        while True:
            engine.step()
            events, cursor, _ = engine.log.read(cursor)
            for event in events:
                match event:
                    case Rejected():
                        raise rejection(event, request)
                    case Sampled():
                        yield event
                    case Finished():
                        yield event
                        return
    finally:
        engine.abort(request.id)
        engine.check()
