"""Our safetensors parser: the package's files read back, every fault a CheckpointError that names the spot."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.safetensors import read_folder, read_safetensors
from lightwell.errors import CheckpointError
from tests.checkpoints.hf_folder import raw_safetensors, safetensors_bytes

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([-0.5], np.float32),
    "c": np.full((1, 2, 2), 1.5, np.float32),
}
SMALL = safetensors_bytes(ARRAYS, "BF16")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def fault(path: Path, data: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(write(path, data))
    assert str(path) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_reads_what_the_package_writes(file: Path, dtype: type) -> None:
    safetensors.numpy.save_file({name: values.astype(dtype) for name, values in ARRAYS.items()}, file, {"format": "pt"})
    tensors = read_safetensors(file).tensors
    assert {name: dequantize(tensor).tolist() for name, tensor in tensors.items()} == {
        name: values.tolist() for name, values in ARRAYS.items()
    }
    assert not tensors["a"].data.flags.writeable


def test_bfloat16_agrees_with_the_package(file: Path) -> None:
    """NumPy has no bfloat16, so the package is asked for the bytes that it finds."""
    tensors = read_safetensors(write(file, SMALL)).tensors
    assert {name: (list(t.shape), t.data.tobytes()) for name, t in tensors.items()} == {
        name: (list(found["shape"]), bytes(found["data"])) for name, found in safetensors.deserialize(SMALL)
    }
    assert dequantize(tensors["c"]).tolist() == ARRAYS["c"].tolist()


HEADER = {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
FAULTS: list[tuple[bytes, str]] = [
    (b"abc", "not a safetensors file"),
    (raw_safetensors(b"{}", b"")[:9], "not a safetensors file"),
    (bytes([255] * 8) + b"{}", "not a safetensors file"),
    (raw_safetensors(b"[]", b""), "not an object"),
    (raw_safetensors(b"{nonsense", b""), "cannot be read as JSON"),
    (raw_safetensors(b"[" * 50_000, b""), "cannot be read as JSON"),
    (raw_safetensors(b'{"t": 1, "t": 2}', b""), "names 't' twice"),
    (raw_safetensors(b'{"t": {"dtype": "F32"}}', b""), "tensor 't' lacks"),
    (raw_safetensors(json.dumps(HEADER).encode(), bytes(7)), "truncated"),
    (raw_safetensors(json.dumps(HEADER).encode(), bytes(9)), "9 bytes of tensors instead of 8"),
]
ENTRY_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "F8_E4M3"}, "tensor 't' is stored as F8_E4M3, which is not supported; supported are F32, F16, BF16"),
    ({"shape": [3]}, "has 8 bytes, but its shape [3] takes 12"),
    ({"shape": [0]}, "has the shape [0]"),
    ({"shape": [-2]}, "has the shape [-2]"),
    ({"shape": [2.0]}, "has the shape [2.0]"),
    ({"shape": []}, "has the shape []"),
    ({"shape": [2**70]}, "has 8 bytes"),
    ({"data_offsets": [8, 16]}, "begins at byte 8 instead of 0"),
    ({"data_offsets": [-8, 0]}, "begins at byte -8 instead of 0"),
    ({"data_offsets": [8, 0]}, "has -8 bytes"),
    ({"data_offsets": [0]}, "lacks a well-formed"),
]


@pytest.mark.parametrize(("data", "message"), FAULTS)
def test_file_faults(file: Path, data: bytes, message: str) -> None:
    assert message in fault(file, data)


@pytest.mark.parametrize(("changes", "message"), ENTRY_FAULTS)
def test_entry_faults(file: Path, changes: dict[str, Any], message: str) -> None:
    header = {"t": HEADER["t"] | changes}
    assert message in fault(file, raw_safetensors(json.dumps(header).encode(), bytes(8)))


def test_truncation_anywhere_is_noticed(file: Path) -> None:
    write(file, SMALL)
    for length in range(len(SMALL) - 1, -1, -1):
        os.truncate(file, length)
        with pytest.raises(CheckpointError):
            read_safetensors(file)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_bytes_give_a_file_or_an_error(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(SMALL)
    for place, value in flips:
        damaged[place] = value
    try:
        read = read_safetensors(write(tmp_path / "m.safetensors", bytes(damaged)))
    except CheckpointError:
        return
    assert all(t.data.size == t.rows * t.columns * t.format.group_bytes for t in read.tensors.values())


def shard(folder: Path, places: dict[str, str], **files: dict[str, Any]) -> Path:
    for name, arrays in files.items():
        write(folder / f"{name}.safetensors", safetensors_bytes(arrays))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_shards_are_joined(tmp_path: Path) -> None:
    places = {"a": "x.safetensors", "b": "y.safetensors", "c": "y.safetensors"}
    x, y = {"a": ARRAYS["a"]}, {"b": ARRAYS["b"], "c": ARRAYS["c"]}
    tensors, maps = read_folder(shard(tmp_path, places, x=x, y=y))
    assert {name: dequantize(t).tolist() for name, t in tensors.items()} == {k: v.tolist() for k, v in ARRAYS.items()}
    assert len(maps) == 2


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "x.safetensors", "b": "x.safetensors"}, "x.safetensors: has no tensor 'b'"),
        ({"b": "x.safetensors"}, "x.safetensors: has a tensor 'a'"),
        ({"a": "z.safetensors"}, "z.safetensors: cannot be read: No such file"),
        ({"a": "../x.safetensors"}, "'../x.safetensors' is not the name of a file"),
        ({"a": 5}, "'weight_map' does not name a file"),
        (["a"], "'weight_map' does not name a file"),
    ],
)
def test_index_faults(tmp_path: Path, places: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_folder(shard(tmp_path, places, x={"a": ARRAYS["a"]}))
    assert message in caught.value.message


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        read_folder(tmp_path)
