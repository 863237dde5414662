"""Many streams read at once with as little work as possible: bytes and their times now, what they say afterwards."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, cast

from lightwell.units import Seconds


@dataclass
class Read:
    """What one connection received. ``pieces``: the text of each event and when it arrived, on the monotonic clock."""

    name: str = ""
    pieces: list[tuple[str, Seconds]] = field(default_factory=list)
    done: bool = False
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.received: list[tuple[bytes, Seconds]] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received.append((data, time.monotonic()))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def read_streams(port: int, streams: int, tokens: int, pause: Seconds) -> list[Read]:
    """Open the streams ``pause`` apart and read each to its end."""
    body = {"model": "paced", "prompt": "The sea", "max_tokens": tokens, "temperature": 0, "stream": True}
    reading = []
    for _ in range(streams):
        reading.append(asyncio.create_task(read_stream(port, body)))
        await asyncio.sleep(pause)
    return await asyncio.gather(*reading)


async def read_stream(port: int, body: dict[str, Any]) -> Read:
    """A completion on a connection of its own."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connect = asyncio.get_running_loop().create_connection
    _, connection = await connect(lambda: _Connection(head.encode() + content), "127.0.0.1", port)
    await connection.closed
    return understood(connection.received)


def understood(received: list[tuple[bytes, Seconds]]) -> Read:
    """The events of an answer with chunked transfer encoding; each arrived with its last byte."""
    read = Read()
    head, _, rest = b"".join(data for data, _ in received).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        read.error = (head + rest)[:300].decode(errors="replace")
        return read
    ends, total = [], -(len(head) + 4)
    for data, at in received:
        total += len(data)
        ends.append((total, at))
    place, arrival = 0, iter(ends)
    end, at = next(arrival)
    while place < len(rest):
        size_end = rest.index(b"\r\n", place)
        size = int(rest[place:size_end], 16)
        chunk, place = rest[size_end + 2 : size_end + 2 + size], size_end + 4 + size
        while end < min(place, len(rest)):
            end, at = next(arrival)
        _take(read, chunk, at)
    return read


def _take(read: Read, chunk: bytes, at: Seconds) -> None:
    for line in chunk.split(b"\n"):
        if line == b"data: [DONE]":
            read.done = True
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                read.error = event["error"]["message"]
            else:
                read.name = event["id"]
                read.pieces += [(choice["text"], at) for choice in event["choices"] if choice["text"]]
