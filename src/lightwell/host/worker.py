"""The engine's own process: read messages, run steps, send one frame of events for each step.

Started by process.py as ``python -m lightwell.host.worker FD`` with one end of a socket pair. It ends when the other
end closes, so no engine outlives its server.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # a start makes hundreds of thousands of objects that stay, and looking through them takes long

import select
import signal
import socket
import sys
from contextlib import suppress

from lightwell.engine.engine import Engine
from lightwell.errors import InvalidRequest, LightwellError
from lightwell.host.build import build_engine
from lightwell.host.messages import Abort, EngineConfig, Failed, Frame, Refused, Stop, Submit, ToEngine
from lightwell.host.wire import Unpacker, pack

_READ_BYTES = 1 << 16


class _Closed(Exception):
    """The client has gone, or asked the engine to end."""


def serve_engine(engine: Engine, connection: socket.socket, unpacker: Unpacker[ToEngine]) -> None:
    """Run the engine until the connection closes or Stop arrives."""
    cursor = 0
    while True:
        try:
            for message in _arrived(connection, unpacker, wait=not engine.has_work):
                _obey(engine, message, connection)
        except _Closed:
            return
        engine.step()
        events, cursor, lost = engine.log.read(cursor)
        assert lost == 0, "more events in one step than the log holds"
        engine.log.forget(cursor)
        if events:
            connection.sendall(pack(Frame(events)))
        if not engine.has_work:
            engine.check()


def _arrived(connection: socket.socket, unpacker: Unpacker[ToEngine], *, wait: bool) -> list[ToEngine]:
    """Messages that have arrived; waits for the first one when there is nothing to compute."""
    readable, _, _ = select.select([connection], [], [], None if wait else 0)
    if not readable:
        return []
    data = connection.recv(_READ_BYTES)
    if not data:
        raise _Closed
    return list(unpacker.feed(data))


def _configuration(connection: socket.socket, unpacker: Unpacker[ToEngine]) -> EngineConfig:
    """The first message. The client sends nothing more before it has heard Hello."""
    while not (messages := _arrived(connection, unpacker, wait=True)):
        pass
    (config,) = messages
    assert isinstance(config, EngineConfig), "the configuration comes first"
    return config


def _obey(engine: Engine, message: ToEngine, connection: socket.socket) -> None:
    match message:
        case Submit(request):
            try:
                engine.submit(request)
            except InvalidRequest as error:
                connection.sendall(pack(Refused(request.id, error.message)))
        case Abort(request_id):
            engine.abort(request_id)
        case Stop():
            raise _Closed


def main() -> None:
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group. The server decides when its engine
    # ends: streams may still be draining.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    unpacker: Unpacker[ToEngine] = Unpacker(ToEngine)
    try:
        engine, hello = build_engine(_configuration(connection, unpacker))
    except _Closed:
        return  # the server found a reason not to start
    except LightwellError as error:
        connection.sendall(pack(Failed(error.message)))
        sys.exit(1)
    gc.freeze()  # what was made so far stays: looking through it again would only delay steps
    gc.enable()
    connection.sendall(pack(hello))
    with suppress(BrokenPipeError, ConnectionResetError):  # the server is gone, and nobody is left to answer
        serve_engine(engine, connection, unpacker)


if __name__ == "__main__":
    main()
