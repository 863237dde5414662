"""Our GGUF parser: every kind of value and tensor read back, every fault a CheckpointError that names the spot."""

import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.checkpoints import gguf as parser
from lightwell.checkpoints.gguf import read_gguf
from lightwell.checkpoints.tensor import Format
from lightwell.errors import CheckpointError
from tests.checkpoints.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Entry,
    Key,
    f32,
    gguf_bytes,
)

VALUES: list[Key] = [
    ("u8", U8, 255),
    ("i8", I8, -128),
    ("u16", U16, 65535),
    ("i16", I16, -32768),
    ("u32", U32, 2**32 - 1),
    ("i32", I32, -(2**31)),
    ("f32", F32, 0.5),
    ("bool", BOOL, True),
    ("string", STRING, "naïve 🌞"),
    ("u64", U64, 2**64 - 1),
    ("i64", I64, -(2**63)),
    ("f64", F64, 0.1),
    ("strings", ARRAY, (STRING, ["a", "", "ünï", "x" * 300])),
    ("floats", ARRAY, (F32, [0.25, -1.0])),
    ("flags", ARRAY, (BOOL, [True, False])),
    ("empty", ARRAY, (I32, [])),
]
SMALL = gguf_bytes(
    [*VALUES, ("general.alignment", U32, 64)],
    [f32("a", (3, 5)), Entry("q", (32, 2), bytes(range(36)), kind=2)],
    alignment=64,
)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def fault(path: Path, data: bytes) -> str:
    """The message that reading ``data`` ends in; it always names the file."""
    with pytest.raises(CheckpointError) as caught:
        read_gguf(write(path, data))
    assert str(path) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_reads_back(file: Path, version: int) -> None:
    metadata = read_gguf(write(file, gguf_bytes(VALUES, version=version))).metadata
    assert metadata == {name: value[1] if kind == ARRAY else value for name, kind, value in VALUES}
    assert type(metadata["bool"]) is bool


def test_tensors_are_read_only_views_of_the_file(file: Path) -> None:
    found = read_gguf(write(file, SMALL))
    a, q = found.tensors["a"], found.tensors["q"]
    assert (a.format, a.shape, a.rows, a.columns) == (Format.F32, (3, 5), 3, 5)
    assert (q.format, q.shape) == (Format.Q4_0, (2, 32))
    assert q.data.tobytes() == bytes(range(36))
    assert not q.data.flags.writeable
    assert not q.data.flags.owndata
    place = np.frombuffer(found.map, np.uint8)
    assert np.shares_memory(q.data, place)


def test_a_header_longer_than_the_first_copy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_gguf(write(file, SMALL)).metadata
    for head in (1, 24, 100, 257):
        monkeypatch.setattr(parser, "_HEAD_BYTES", head)
        assert read_gguf(file).metadata == whole


def test_agrees_with_the_gguf_package(file: Path) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_token_list(["<s>", "ab", "ü"])
    writer.add_token_scores([0.5, -1.25, 3.0])
    writer.add_custom_alignment(128)
    rng = np.random.default_rng(1)
    kinds = [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
    for kind in kinds:
        values = rng.normal(0, 1, (3, 64)).astype(np.float32)
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_equal_to_gguf_package(file)


def assert_equal_to_gguf_package(path: Path) -> None:
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == expected
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.format == tensor.tensor_type.name
        assert list(reversed(mine.shape)) == tensor.shape.tolist()
        assert np.array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8)), tensor.name


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_agrees_with_the_gguf_package_on_real_files(
    model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package slices a memory map a million times; a plain array of the same bytes is several times faster."""
    path = request.getfixturevalue(model)
    monkeypatch.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
    assert_equal_to_gguf_package(path)


def test_missing_and_empty_files(file: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_gguf(file)
    assert "empty" in fault(file, b"")


HEADER_FAULTS = [
    (b"GGML" + SMALL[4:], "starts with b'GGML'"),
    (b"GGUF" + struct.pack("<I", 1) + SMALL[8:], "GGUF version 1"),
    (b"GGUF" + struct.pack(">I", 3) + SMALL[8:], "big-endian"),
    (gguf_bytes([("k", 99, 0)]), "key 'k' has the unknown value type 99"),
    (gguf_bytes([("k", ARRAY, (99, [0]))]), "key 'k' is an array of the unknown value type 99"),
    (gguf_bytes([("k", ARRAY, (ARRAY, []))]), "key 'k' is an array of arrays"),
    (gguf_bytes([("k", BOOL, 7)]), "key 'k' is a boolean with the value 7"),
    (gguf_bytes([("k", STRING, b"\xff")]), "key 'k' is not UTF-8"),
    (gguf_bytes([("k", ARRAY, (STRING, ["a", b"\xc3"]))]), "key 'k' is not UTF-8"),
    (gguf_bytes([("k", U8, 1), ("k", U8, 2)]), "key 'k' appears twice"),
    (gguf_bytes([("split.count", U16, 3)]), "split model"),
    (gguf_bytes([("general.alignment", U32, 48)]), "'general.alignment' is 48"),
    (gguf_bytes([("general.alignment", STRING, "x")]), "'general.alignment' is 'x'"),
]


@pytest.mark.parametrize(("data", "message"), HEADER_FAULTS)
def test_header_faults(file: Path, data: bytes, message: str) -> None:
    assert message in fault(file, data)


@pytest.mark.parametrize("item", [STRING, U8, F64])
@pytest.mark.parametrize(("count", "message"), [(2**62, "key 'k' claims"), (2**20, "key 'k'")])
def test_a_count_beyond_the_file_allocates_nothing(file: Path, item: int, count: int, message: str) -> None:
    data = gguf_bytes([("k", ARRAY, (item, []))])
    claimed = data.replace(struct.pack("<IQ", item, 0), struct.pack("<IQ", item, count), 1)
    assert claimed != data
    assert message in fault(file, claimed)


def test_a_header_beyond_all_reason_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_MAX_HEADER", 300)
    assert "key 'k' ends at byte" in fault(file, gguf_bytes([("k", STRING, "x" * 300)]))


def test_a_string_beyond_the_file(file: Path) -> None:
    data = gguf_bytes([("k", STRING, "word")]).replace(struct.pack("<Q", 4), struct.pack("<Q", 2**63), 1)
    assert "key 'k'" in fault(file, data)


TENSOR_FAULTS: list[tuple[list[Entry], str]] = [
    ([Entry("t", (256,), b"", kind=17)], "tensor 't' is stored as IQ2_XS"),
    ([Entry("t", (256,), b"", kind=10)], "supported are F32, F16, BF16, Q4_0"),
    ([Entry("t", (256,), b"", kind=200)], "unknown type 200"),
    ([Entry("t", (33, 2), bytes(36), kind=2)], "multiples of 32"),
    ([Entry("t", (128, 2), bytes(144), kind=12)], "multiples of 256"),
    ([Entry("t", (0, 2), b"")], "no dimension may be 0"),
    ([Entry("t", (), b"")], "0 dimensions"),
    ([Entry("t", (1, 1, 1, 1, 1), bytes(4))], "5 dimensions"),
    ([Entry("t", (4,), bytes(16), offset=64)], "truncated"),
    ([Entry("t", (2**40, 2**40), bytes(16))], "truncated"),
    ([Entry("t", (4,), bytes(64), offset=8)], "not a multiple of 32"),
    ([f32("t", (8,)), f32("t", (8,))], "tensor 't' appears twice"),
    ([f32("t", (16,)), Entry("u", (8,), bytes(32), offset=32)], "tensor 'u' lies over the end"),
]


@pytest.mark.parametrize(("tensors", "message"), TENSOR_FAULTS)
def test_tensor_faults(file: Path, tensors: list[Entry], message: str) -> None:
    assert message in fault(file, gguf_bytes([], tensors))


def test_truncation_anywhere_is_noticed(file: Path) -> None:
    """All but the padding behind the last tensor is needed."""
    needed = len(SMALL) - 28
    assert read_gguf(write(file, SMALL[:needed])).tensors.keys() == {"a", "q"}
    for length in range(needed - 1, -1, -1):
        os.truncate(file, length)
        with pytest.raises(CheckpointError):
            read_gguf(file)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    length=st.integers(1, len(SMALL)),
)
def test_damaged_bytes_give_a_file_or_an_error(tmp_path: Path, flips: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(SMALL)
    for place, value in flips:
        damaged[place] = value
    read: Any = None
    try:
        read = read_gguf(write(tmp_path / "m.gguf", bytes(damaged[:length])))
    except CheckpointError:
        return
    for tensor in read.tensors.values():
        groups = tensor.rows * tensor.columns // tensor.format.group_values
        assert tensor.data.size == groups * tensor.format.group_bytes
