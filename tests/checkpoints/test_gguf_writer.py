"""What is written, read back by the gguf package and by our own parser."""

import gguf
import numpy as np
import pytest

from lightwell.checkpoints.gguf import read_gguf
from lightwell.checkpoints.gguf_writer import encode_key, put_in_place, write_gguf
from lightwell.checkpoints.tensor import Format, Tensor

KEYS = {
    "general.architecture": "llama",
    "a.count": 3_000_000_000,
    "a.share": 0.5,
    "a.yes": True,
    "a.names": ["", "é", "🙂 x"],
    "a.numbers": [1, -2],
    "a.scores": [0.25, -1.0],
    "a.nothing": [],
}
TYPES = ["STRING", "UINT32", "FLOAT32", "BOOL", "ARRAY", "ARRAY", "ARRAY", "ARRAY"]


def tensors():
    rng = np.random.default_rng(0)
    for name, kind, shape in [
        ("one", Format.F32, (5,)),
        ("two", Format.Q4_0, (3, 32)),
        ("three", Format.BF16, (2, 3, 4)),
    ]:
        size = int(np.prod(shape)) // kind.group_values * kind.group_bytes
        yield Tensor(name, kind, shape, rng.integers(0, 60, size, np.uint8))


def test_both_readers_find_what_was_written(tmp_path):
    path, written = tmp_path / "m.gguf", list(tensors())
    write_gguf(path, [encode_key(name, value) for name, value in KEYS.items()], written)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert ours.metadata == KEYS
    fields = [theirs.fields[name] for name in KEYS]
    assert [field.types[0].name for field in fields] == TYPES
    assert theirs.fields["a.numbers"].types[1].name == "INT32"
    assert [field.contents() for field in fields] == list(KEYS.values())
    for tensor, found in zip(written, theirs.tensors, strict=True):
        assert (found.name, found.tensor_type.name, tuple(found.shape[::-1])) == (
            tensor.name,
            tensor.format.name,
            tensor.shape,
        )
        assert np.array_equal(found.data.reshape(-1).view(np.uint8), tensor.data)
        assert np.array_equal(ours.tensors[tensor.name].data, tensor.data)
        assert ours.tensors[tensor.name].shape == tensor.shape


def test_keys_can_be_carried_over_byte_by_byte(tmp_path):
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    writer = gguf.GGUFWriter(first, "llama")
    writer.add_key_value("a.small", 7, gguf.GGUFValueType.UINT8)
    writer.add_key_value("a.large", -(2**40), gguf.GGUFValueType.INT64)
    writer.add_key_value("a.exact", 0.1, gguf.GGUFValueType.FLOAT64)
    writer.add_tensor("t", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = read_gguf(first)
    write_gguf(second, [source.map[place] for place in source.places.values()], list(source.tensors.values()))
    assert second.read_bytes() == first.read_bytes()


def test_a_file_gets_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_text("old")

    def write(fails):
        with put_in_place(path) as partial:
            partial.write_text("new")
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(fails=True)
    assert path.read_text() == "old"
    write(fails=False)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
