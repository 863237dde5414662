"""GGUF files written: version 3, little-endian, as ggml's docs/gguf.md describes them."""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightwell.checkpoints.gguf import TENSOR_TYPES
from lightwell.checkpoints.tensor import Tensor
from lightwell.units import Bytes

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

_VERSION = 3
_ALIGNMENT: Bytes = 32  # what holds without a key general.alignment
_ARRAY = 9
_TYPES: dict[type, tuple[int, str]] = {  # GGUF's number, and struct's letter, for what a Python type becomes
    bool: (7, "?"),
    int: (4, "I"),
    float: (6, "f"),
    str: (8, ""),
}
_ITEM_TYPES = _TYPES | {int: (5, "i")}


def encode_key(name: str, value: Value) -> bytes:
    """One key: whole numbers as u32, in arrays i32, others as f32; those are the types that llama.cpp asks for."""
    if isinstance(value, str | bool | int | float):
        kind, letter = _TYPES[type(value)]
        return _text(name) + struct.pack("<I", kind) + _scalar(letter, value)
    kind, letter = _ITEM_TYPES[type(value[0])] if value else _ITEM_TYPES[str]
    head = struct.pack("<IIQ", _ARRAY, kind, len(value))
    return _text(name) + head + b"".join(_scalar(letter, item) for item in value)


def _scalar(letter: str, value: bool | int | float | str) -> bytes:
    return _text(value) if isinstance(value, str) else struct.pack(f"<{letter}", value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path: Path, keys: Sequence[bytes], tensors: Sequence[Tensor]) -> None:
    """Write encoded keys and tensors, asking for each tensor's data only when it is its turn. Raises OSError."""
    header = bytearray(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(keys)))
    header += b"".join(keys)
    offset = 0
    for tensor in tensors:
        header += _directory_entry(tensor, offset)
        offset += tensor.nbytes + _padding(tensor.nbytes)
    with path.open("wb") as file:
        file.write(header + bytes(_padding(len(header))))
        for tensor in tensors:
            tensor.data.tofile(file)
            file.write(bytes(_padding(tensor.nbytes)))
        file.flush()
        os.fsync(file.fileno())


def _directory_entry(tensor: Tensor, offset: Bytes) -> bytes:
    """Dimensions stand the fastest first."""
    dimensions = tensor.shape[::-1]
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return _text(tensor.name) + shape + struct.pack("<IQ", TENSOR_TYPES.index(tensor.format.name), offset)


def _padding(size: Bytes) -> Bytes:
    return -size % _ALIGNMENT


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """A path to write to: what lies there gets its name at the end, whole; where anything fails, it is removed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
