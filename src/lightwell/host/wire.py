"""Frames on a stream socket: four bytes of length (little endian), then one msgpack message."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

_LENGTH_BYTES = 4
_encoder = msgspec.msgpack.Encoder()
Message = TypeVar("Message")


def pack(message: msgspec.Struct) -> bytes:
    """One message as a frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Unpacker(Generic[Message]):
    """Bytes as they arrive, in any pieces, to whole messages of one union of types."""

    def __init__(self, types: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(types)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages completed by ``data``. Raises msgspec.DecodeError on a frame that is none of the types."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield self._decoder.decode(body)
