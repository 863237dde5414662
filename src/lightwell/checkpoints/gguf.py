"""The GGUF container, versions 2 and 3: key-value metadata and tensors as views of the memory-mapped file.

Follows the format description in ggml's docs/gguf.md. Nothing in the file is trusted: every length, offset and type
is checked against the file's size before it is used, and a fault names the file and the key or tensor.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightwell.checkpoints.mapping import MappedFile, map_file
from lightwell.checkpoints.tensor import INTEGERS, ComputedTensor, Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.units import Bytes

if TYPE_CHECKING:  # only who looks at a tensor's bytes imports it (tensor.py)
    import numpy as np
    import numpy.typing as npt

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT: Bytes = 32
_HEAD_BYTES: Bytes = 2 << 20  # the header of a model with 50,000 tokens; one of 260,000 takes the next step
_HEAD_GROWTH = 4
_MAX_HEADER: Bytes = 100_000_000  # several times the largest in use, as are the items of an array
_MAX_ITEMS = 1 << 24
_MAX_DIMENSIONS = 4
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {  # GGUF's number for a value type -> its letter in a struct
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
# ggml's numbers for tensor types are places in this list; those that are no Format are named to be refused.
_TYPE_NAMES = """
    F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S
    IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4
    IQ4_NL_4_8 IQ4_NL_8_8 MXFP4
"""
TENSOR_TYPES = _TYPE_NAMES.split()
_SUPPORTED = [format.name for format in Format if format.name in TENSOR_TYPES and format not in INTEGERS]


@dataclass(frozen=True)
class GgufFile:
    """``metadata`` holds plain Python values, arrays as lists; ``places`` are the bytes of each key in the map, from
    its name to the end of its value. ``tensors`` have the file's own names."""

    path: Path
    metadata: Mapping[str, Any]
    places: Mapping[str, slice]
    tensors: Mapping[str, Tensor]
    map: MappedFile


def read_gguf(path: Path) -> GgufFile:
    """Map a GGUF file and read its header; no tensor is touched.

    Raises CheckpointError when the file is damaged, truncated, or of a kind that is not read here.
    """
    mapped = map_file(path)
    cursor = _Cursor(path, mapped)
    tensor_count, key_count = _read_preamble(cursor)
    metadata, places = _read_metadata(cursor, key_count)
    if metadata.get("split.count", 0) > 1:
        raise CheckpointError(path, "is one part of a split model: join the parts with llama-gguf-split --merge")
    entries = [_read_tensor_entry(cursor) for _ in range(tensor_count)]
    return GgufFile(path, metadata, places, _place_tensors(cursor, entries, _alignment(path, metadata)), mapped)


class _Cursor:
    """A position in the header; every read is checked against the end of the file first.

    Reads go to ``head``, a copy of the file's beginning that grows as far as the header reaches: slicing bytes is
    about twice as fast as slicing a map, and a vocabulary has hundreds of thousands of strings.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.position = path, data, len(data), 0
        self.head = data[:_HEAD_BYTES]

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(self.path, what)

    def take(self, count: Bytes, what: str) -> int:
        """Step over ``count`` bytes and return where they start."""
        start = self.position
        if count > self.size - start:
            raise self.fault(f"ends inside {what}: {count} bytes wanted at offset {start}, {self.size - start} left")
        self.position = start + count
        if self.position > _MAX_HEADER:
            raise self.fault(f"{what} ends at byte {self.position}: headers of up to {_MAX_HEADER} bytes are read")
        if self.position > len(self.head):
            self.head = self.data[: max(self.position, _HEAD_GROWTH * len(self.head))]
        return start

    def u32(self, what: str) -> int:
        start = self.take(4, what)
        return int(_U32.unpack_from(self.head, start)[0])

    def u64(self, what: str) -> int:
        start = self.take(8, what)
        return int(_U64.unpack_from(self.head, start)[0])

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.take(length, what)
        try:
            return self.head[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.not_text(error, what) from None

    def _end_of_string(self, position: int, what: str) -> int:
        """Where the string at ``position`` ends, after making the head reach that far."""
        self.position = position
        self.take(self.u64(what), what)
        return self.position

    def not_text(self, error: UnicodeDecodeError, what: str) -> CheckpointError:
        return self.fault(f"{what} is not UTF-8 text: {error.object[:40]!r}, {error.reason}")

    def numbers(self, value_type: int, count: int, what: str) -> list[Any]:
        """``count`` scalars of one type as Python numbers or booleans."""
        letter = _SCALARS[value_type]
        start = self.take(count * struct.calcsize(f"<{letter}"), what)
        values = list(struct.unpack_from(f"<{count}{letter}", self.head, start))
        if value_type != _BOOL:
            return values
        if max(values, default=0) > 1:
            raise self.fault(f"{what} is a boolean with the value {max(values)}")
        return list(map(bool, values))

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings; the loop is written flat because it is where a header's time goes."""
        if count * 8 > self.size - self.position:
            raise self.fault(f"{what} claims {count} strings, more than the rest of the file can hold")
        head, position, limit, length_at = self.head, self.position, len(self.head), _U64.unpack_from
        raw: list[bytes] = []
        for index in range(count):
            start = position + 8
            if start > limit or (end := start + length_at(head, position)[0]) > limit:
                end = self._end_of_string(position, f"string {index} of {what}")
                head, limit = self.head, len(self.head)
            raw.append(head[start:end])
            position = end
        self.position = position
        try:
            return [item.decode() for item in raw]
        except UnicodeDecodeError as error:
            raise self.not_text(error, what) from None


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return how many tensors and keys follow."""
    start = cursor.take(4, "the magic number")
    magic = cursor.head[start : start + 4]
    if magic != _MAGIC:
        raise cursor.fault(f"is not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}")
    version = cursor.u32("the version")
    if version not in _VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *_VERSIONS)
        found = "is a big-endian GGUF file" if big_endian else f"is GGUF version {version}"
        raise cursor.fault(f"{found}: little-endian versions 2 and 3 are read here, convert it again")
    return cursor.u64("the tensor count"), cursor.u64("the key count")


def _read_metadata(cursor: _Cursor, count: int) -> tuple[dict[str, Any], dict[str, slice]]:
    metadata: dict[str, Any] = {}
    places: dict[str, slice] = {}
    for index in range(count):
        begin = cursor.position
        key = cursor.string(f"the name of key {index}")
        if key in metadata:
            raise cursor.fault(f"key {key!r} appears twice")
        metadata[key] = _read_value(cursor, cursor.u32(f"the type of key {key!r}"), f"key {key!r}")
        places[key] = slice(begin, cursor.position)
    return metadata, places


def _read_value(cursor: _Cursor, value_type: int, what: str) -> Any:
    if value_type in _SCALARS:
        return cursor.numbers(value_type, 1, what)[0]
    if value_type == _STRING:
        return cursor.string(what)
    if value_type != _ARRAY:
        raise cursor.fault(f"{what} has the unknown value type {value_type}")
    item_type, count = cursor.u32(what), cursor.u64(what)
    if count > _MAX_ITEMS:
        raise cursor.fault(f"{what} claims {count} items: up to {_MAX_ITEMS} are read")
    if item_type in _SCALARS:
        return cursor.numbers(item_type, count, what)
    if item_type == _STRING:
        return cursor.strings(count, what)
    kind = "arrays, which no supported model has" if item_type == _ARRAY else f"the unknown value type {item_type}"
    raise cursor.fault(f"{what} is an array of {kind}")


def _alignment(path: Path, metadata: Mapping[str, Any]) -> Bytes:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment.bit_count() != 1:
        raise CheckpointError(path, f"key 'general.alignment' is {alignment!r}: a power of two from 8 up is needed")
    return alignment


@dataclass(frozen=True)
class _Entry:
    """One line of the tensor directory: ``offset`` counts from the start of the data section."""

    name: str
    format: Format
    shape: tuple[int, ...]
    offset: Bytes

    @property
    def size(self) -> Bytes:
        values = 1
        for dimension in self.shape:
            values *= dimension
        return values // self.format.group_values * self.format.group_bytes


def _read_tensor_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string("a tensor's name")
    what = f"tensor {name!r}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.fault(f"{what} has {dimensions} dimensions: 1 to {_MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.u64(what) for _ in range(dimensions))[::-1]
    tensor_format = _format(cursor, cursor.u32(what), what)
    if 0 in shape or shape[-1] % tensor_format.group_values:
        raise cursor.fault(
            f"{what} has the shape {shape}: no dimension may be 0, and rows of {tensor_format} "
            f"are multiples of {tensor_format.group_values} values"
        )
    return _Entry(name, tensor_format, shape, cursor.u64(what))


def _format(cursor: _Cursor, tensor_type: int, what: str) -> Format:
    name = TENSOR_TYPES[tensor_type] if tensor_type < len(TENSOR_TYPES) else f"unknown type {tensor_type}"
    if name not in _SUPPORTED:
        raise cursor.fault(f"{what} is stored as {name}, which is not supported; supported are {', '.join(_SUPPORTED)}")
    return Format[name]


def _place_tensors(cursor: _Cursor, entries: list[_Entry], alignment: Bytes) -> dict[str, Tensor]:
    """Check that the tensors lie aligned, apart from each other and inside the file; return views of them by name."""
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    free = 0  # the first byte after the tensors seen so far
    for entry in sorted(entries, key=lambda entry: entry.offset):
        what = f"tensor {entry.name!r}"
        if entry.name in tensors:
            raise cursor.fault(f"{what} appears twice")
        if entry.offset % alignment:
            raise cursor.fault(f"{what} lies at offset {entry.offset}, which is not a multiple of {alignment}")
        if entry.offset < free:
            raise cursor.fault(f"{what} lies over the end of the tensor before it")
        free = entry.offset + entry.size
        if base + free > cursor.size:
            raise cursor.fault(f"{what} ends at byte {base + free}, but the file has {cursor.size}: it is truncated")
        view = partial(_view, cursor.data, entry.size, base + entry.offset)
        tensors[entry.name] = ComputedTensor(entry.name, entry.format, entry.shape, view)
    return tensors


def _view(mapped: mmap.mmap, size: Bytes, begin: Bytes) -> "npt.NDArray[np.uint8]":
    import numpy as np

    return np.frombuffer(mapped, np.uint8, size, begin)
