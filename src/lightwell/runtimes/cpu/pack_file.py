"""One file of packed weights: a checked header and index, then the bytes of the matrices as kernels read them.

    magic, version, CRC-32 and length of the index | index (msgpack) | zeros to a page's end | matrices

Where the system keeps the file in huge pages the matrices are used as they lie in its cache, shared by all processes
that do; else they are copied into huge pages of this process, since small ones make decoding slower.
"""

import mmap
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from lightwell.runtimes.cpu import _native
from lightwell.units import Bytes

_MAGIC, _VERSION = b"LWPACKED", 1
_HEAD = Struct("<8sIIQ")
_PAGE = 4096
_HUGE_PAGE = 2 << 20
_HUGE_SHARE = 0.8  # the beginning and the end of a file never fill a huge page
_MOST_BUFFERS = 1024  # that one call of writev takes
_SMAPS = Path("/proc/self/smaps")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PACKING = f"{_VERSION}-{_native.PACKING}"  # names everything that packed files depend on besides the model's files


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Where a matrix lies in a model's files, and how: with the files' content this fixes its packed bytes."""

    file: int
    offset: Bytes
    format: str
    rows: int
    columns: int


class Place(msgspec.Struct, frozen=True, array_like=True):
    """``offset`` counts from the first matrix."""

    source: Source
    offset: Bytes
    bytes: Bytes
    checksum: int


class Index(msgspec.Struct, frozen=True, array_like=True):
    packing: str
    model: str  # for people
    matrices: list[Place]

    @property
    def bytes(self) -> Bytes:
        return sum(place.bytes for place in self.matrices)


class Damaged(Exception):
    """A file that cannot be used; says why."""


def write_pack(file: BinaryIO, model: str, matrices: Mapping[Source, _native.PackedMatrix]) -> None:
    """Write a whole file, and wait until it is on the disk. Raises OSError."""
    places, end = [], 0
    for source, matrix in matrices.items():
        places.append(Place(source, end, matrix.nbytes, zlib.crc32(matrix.packed.data)))
        end += matrix.nbytes
    body = msgspec.msgpack.encode(Index(PACKING, model, places))
    head = _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(body), len(body)) + body
    head += bytes(_data_begin(len(body)) - len(head))
    _write_all(file.fileno(), [memoryview(head), *(matrix.packed.data for matrix in matrices.values())])
    os.fsync(file.fileno())


def read_pack(file: BinaryIO, threads: int) -> dict[Source, _native.PackedMatrix]:
    """The matrices of a file, every byte checked. Raises Damaged, OSError."""
    index, begin = read_index(file)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a hint, which some file systems refuse
            mapped.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(mapped, np.uint8)[begin:]
    with ThreadPoolExecutor(threads) as pool:  # reading and checking release the GIL
        if not _in_huge_pages(data):
            data = _read(file, begin, index, pool)
        list(pool.map(lambda place: _check(data, place), index.matrices))
    return {place.source: _matrix(data, place) for place in index.matrices}


def read_index(file: BinaryIO) -> tuple[Index, Bytes]:
    """The index of a file, and where its matrices begin, once header, index and length are checked. Raises Damaged."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise Damaged(f"it ends inside its header, after {size} bytes")
    magic, version, checksum, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise Damaged(f"it starts with {magic!r} instead of {_MAGIC!r}")
    if version != _VERSION:
        raise Damaged(f"it has version {version} instead of {_VERSION}")
    body = file.read(min(length, size))
    if len(body) != length or zlib.crc32(body) != checksum:
        raise Damaged("its index does not match the index's checksum")
    index, begin = _decoded(body), _data_begin(length)
    if size != begin + index.bytes:
        raise Damaged(f"it has {size} bytes instead of {begin + index.bytes}")
    return index, begin


def _decoded(body: bytes) -> Index:
    try:
        index = msgspec.msgpack.decode(body, type=Index)
    except msgspec.DecodeError as error:
        raise Damaged(f"its index cannot be read: {error}") from None
    if index.packing != PACKING:
        raise Damaged(f"it is packed as {index.packing} instead of {PACKING}")
    return index


def _data_begin(index_bytes: Bytes) -> Bytes:
    return -(-(_HEAD.size + index_bytes) // _PAGE) * _PAGE


def _check(data: npt.NDArray[np.uint8], place: Place) -> None:
    if zlib.crc32(data[place.offset : place.offset + place.bytes].data) != place.checksum:
        raise Damaged(f"the {place.bytes} bytes from {place.offset} on do not match their checksum")


def _matrix(data: npt.NDArray[np.uint8], place: Place) -> _native.PackedMatrix:
    source = place.source
    packed = data[place.offset : place.offset + place.bytes]
    try:
        return _native.PackedMatrix.of_packed(packed, source.format, source.rows, source.columns)
    except ValueError as error:
        raise Damaged(str(error)) from None


def _write_all(file: int, buffers: list[memoryview]) -> None:
    """As much as possible in one call: the system then keeps the file in pages as large as it can."""
    while buffers:
        written = os.writev(file, buffers[:_MOST_BUFFERS])
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def _in_huge_pages(data: npt.NDArray[np.uint8]) -> bool:
    """Whether the system maps this file in huge pages; true where it cannot put memory of ours into them either."""
    try:
        if "[never]" in _HUGE_PAGES.read_text():
            return True
        data[::_HUGE_PAGE].max(initial=0)  # a huge page is mapped as soon as one byte of it is looked at
        return _huge_bytes(address(data)) >= _HUGE_SHARE * data.nbytes
    except (OSError, ValueError):  # not Linux
        return True


def _huge_bytes(place: int) -> Bytes:
    """Bytes of the mapping around this address that stand in huge pages."""
    inside = False
    for line in _SMAPS.read_text().splitlines():
        name, *values = line.split()
        if "-" in name:
            begin, end = (int(bound, 16) for bound in name.split("-"))
            inside = begin <= place < end
        elif inside and name == "FilePmdMapped:":
            return int(values[0]) * 1024
    return 0


def address(data: npt.NDArray[np.uint8]) -> int:
    """Where an array's first byte lies in this process."""
    return int(data.__array_interface__["data"][0])


def _read(file: BinaryIO, begin: Bytes, index: Index, pool: ThreadPoolExecutor) -> npt.NDArray[np.uint8]:
    """The matrices in memory of this process. Not copied from the mapping, which takes a fault for every few pages."""
    copy = _native.empty_weights(index.bytes)

    def fill(place: Place) -> None:
        rest = copy[place.offset : place.offset + place.bytes].data
        while rest:
            if not (count := os.preadv(file.fileno(), [rest], begin + place.offset + place.bytes - len(rest))):
                raise Damaged("it got shorter while it was read")
            rest = rest[count:]

    list(pool.map(fill, index.matrices))
    return copy
