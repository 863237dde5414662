"""The safetensors container: one JSON header and tensors as views of the memory-mapped file.

Follows the format's own description (huggingface/safetensors README), as strictly as its library does.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightwell.checkpoints.json_files import parse_json, read_json
from lightwell.checkpoints.mapping import MappedFile, map_file
from lightwell.checkpoints.tensor import INTEGERS, Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.units import Bytes

_LENGTH_BYTES: Bytes = 8
_MAX_HEADER: Bytes = 100_000_000  # the library's own limit
_FORMATS = {format.name: format for format in (Format.F32, Format.F16, Format.BF16, *INTEGERS)}


@dataclass(frozen=True)
class SafetensorsFile:
    """``tensors`` have the file's own names."""

    tensors: Mapping[str, Tensor]
    map: MappedFile


def read_safetensors(path: Path) -> SafetensorsFile:
    """Map a file and read its header; no tensor is touched.

    Raises CheckpointError when the file is damaged, truncated, or holds formats that are not read here.
    """
    mapped = map_file(path)
    header_end, header = _read_header(path, mapped)
    data = np.frombuffer(mapped, np.uint8)[header_end:]
    entries = [_entry(path, name, fields) for name, fields in header.items() if name != "__metadata__"]
    _check_places(path, entries, len(data))
    tensors = {e.name: Tensor(e.name, e.format, e.shape, data[e.begin : e.end]) for e in entries}
    return SafetensorsFile(tensors, mapped)


def read_folder(folder: Path) -> tuple[dict[str, Tensor], tuple[MappedFile, ...]]:
    """All tensors of a folder under their own names, and the maps that they lie in: one file, or shards by an index.

    Raises CheckpointError.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        file = read_safetensors(single)
        return dict(file.tensors), (file.map,)
    if not index.exists():
        raise CheckpointError(folder, "has neither model.safetensors nor model.safetensors.index.json")
    return _read_shards(folder, index)


def _read_shards(folder: Path, index: Path) -> tuple[dict[str, Tensor], tuple[MappedFile, ...]]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(index, "key 'weight_map' does not name a file for each tensor")
    tensors: dict[str, Tensor] = {}
    maps: list[MappedFile] = []
    for file_name in sorted(set(places.values())):
        if Path(file_name).name != file_name:
            raise CheckpointError(index, f"{file_name!r} is not the name of a file in this folder")
        file = read_safetensors(folder / file_name)
        maps.append(file.map)
        for name, tensor in file.tensors.items():
            if places.get(name) != file_name:
                raise CheckpointError(
                    folder / file_name, f"has a tensor {name!r}, which {index.name} does not place there"
                )
            tensors[name] = tensor
    for name, file_name in places.items():
        if name not in tensors:
            raise CheckpointError(folder / file_name, f"has no tensor {name!r}, which {index.name} places there")
    return tensors, tuple(maps)


@dataclass(frozen=True)
class _Entry:
    """One tensor of the header; ``begin`` and ``end`` count bytes from the end of the header."""

    name: str
    format: Format
    shape: tuple[int, ...]
    begin: Bytes
    end: Bytes


def _read_header(path: Path, mapped: mmap.mmap) -> tuple[Bytes, dict[str, Any]]:
    """Return where the header ends, and the header."""
    length = int.from_bytes(mapped[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    if len(mapped) < _LENGTH_BYTES or end > len(mapped) or length > _MAX_HEADER:
        raise CheckpointError(path, f"is truncated or not a safetensors file: its header would be {length} bytes long")
    return end, parse_json(path, mapped[_LENGTH_BYTES:end], "its header")


def _entry(path: Path, name: str, fields: object) -> _Entry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise CheckpointError(path, f"tensor {name!r} lacks a well-formed dtype, shape or data_offsets")
    if dtype not in _FORMATS:
        raise CheckpointError(
            path, f"tensor {name!r} is stored as {dtype}, which is not supported; supported are {', '.join(_FORMATS)}"
        )
    if not shape or not all(type(length) is int and length > 0 for length in shape):
        raise CheckpointError(path, f"tensor {name!r} has the shape {shape}: whole numbers from 1 up are needed")
    size = math.prod(shape) * _FORMATS[dtype].group_bytes
    if end - begin != size:
        raise CheckpointError(path, f"tensor {name!r} has {end - begin} bytes, but its shape {shape} takes {size}")
    return _Entry(name, _FORMATS[dtype], tuple(shape), begin, end)


def _check_places(path: Path, entries: list[_Entry], data_bytes: Bytes) -> None:
    """The tensors must fill the data section without holes or overlaps."""
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.begin):
        if entry.begin != position:
            raise CheckpointError(path, f"tensor {entry.name!r} begins at byte {entry.begin} instead of {position}")
        position = entry.end
    if position != data_bytes:
        raise CheckpointError(path, f"has {data_bytes} bytes of tensors instead of {position}: truncated or damaged")
