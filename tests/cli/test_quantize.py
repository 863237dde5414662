"""``lightwell quantize`` from a file and from a folder, and what it refuses."""

import json
import subprocess
import sys

import gguf
import numpy as np
import pytest

from bench.peers.hf_folder import write_hf_folder
from lightwell.checkpoints import Format, open_checkpoint
from lightwell.checkpoints.gguf import read_gguf
from lightwell.checkpoints.quantized import dequantize
from lightwell.cli.quantize import quantize
from lightwell.errors import CheckpointError, StartupError
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text import load_tokenizer
from tests.steps import Chunk, step_of
from tests.tiny_gguf import write_tiny_gguf

TOKENS = [17, 200, 3, 99, 150, 42, 7, 256, 31]
NEAR = {"q8_0": 0.02, "q4_0": 0.4, "q4_1": 0.4}  # relative RMS error of the scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama in bf16 with tokenizer and chat template."""
    made = tmp_path_factory.mktemp("folder")
    write_hf_folder(write_tiny_gguf(made / "tiny.gguf"), made / "tiny")
    return made / "tiny"


@pytest.fixture(scope="module")
def floats(folder, tmp_path_factory):
    """The same model as GGUF in F16, written by the gguf package, with a key of a rare type."""
    path = tmp_path_factory.mktemp("floats") / "floats.gguf"
    quantize(str(folder), path, "q8_0", False, False, False)
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(path.with_name("f16.gguf"), "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", "general.quant")):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    writer.add_key_value("general.rare", 2**40, gguf.GGUFValueType.UINT64)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float32 if values.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name("f16.gguf")


def scores(checkpoint):
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    runtime.allocate(1)
    out = np.empty((len(TOKENS), checkpoint.spec.vocab), np.float32)
    runtime.execute(step_of(Chunk(TOKENS, 0, [0], draw=range(len(TOKENS)))), out)
    return out


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1"])
def test_a_folder_becomes_a_model_near_it(folder, tmp_path, kind):
    path = tmp_path / "m.gguf"
    quantize(str(folder), path, kind, False, False, False)
    source, found = open_checkpoint(folder), open_checkpoint(path)
    assert 0 < distance(scores(found), scores(source)) < NEAR[kind]
    assert found.chat_template == source.chat_template
    ours, theirs = load_tokenizer(source), load_tokenizer(found)
    text = "<|im_start|>user\nWhat's 1234?<|im_end|>"
    assert theirs.encode_prompt(text) == ours.encode_prompt(text)
    assert theirs.stop_ids == ours.stop_ids
    formats = {name: tensor.format for name, tensor in found.tensors.items()}
    assert {formats[name] for name in formats if name.endswith("norm.weight")} == {Format.F32}
    assert formats["embed.weight"] == Format.Q8_0
    assert {formats[f"layers.1.{name}.weight"] for name in ("q", "k", "v", "o", "gate", "up", "down")} == {
        Format[kind.upper()]
    }
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1"])
def test_values_are_those_of_the_gguf_package(floats, tmp_path, kind):
    path = tmp_path / "m.gguf"
    quantize(str(floats), path, kind, False, False, False)
    before, after = read_gguf(floats), gguf.GGUFReader(path)
    found = open_checkpoint(path)
    for tensor in after.tensors:
        values = dequantize(before.tensors[tensor.name])
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, tensor.tensor_type), tensor.tensor_type)
        assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), expected)
    by_name = {tensor.name: tensor for tensor in found.tensors.values()}
    assert by_name.keys() == before.tensors.keys()
    for name, tensor in by_name.items():
        stored = next(t for t in after.tensors if t.name == name)
        assert np.array_equal(dequantize(tensor), gguf.quants.dequantize(stored.data, stored.tensor_type))


def test_keys_of_a_file_are_carried_over_as_they_stand(floats, tmp_path):
    path = tmp_path / "m.gguf"
    quantize(str(floats), path, "q4_0", False, False, False)
    before, after = gguf.GGUFReader(floats).fields, gguf.GGUFReader(path).fields
    replaced = {"general.file_type": 2, "general.quantization_version": 2}
    for name in (before.keys() | replaced.keys()) - {"GGUF.kv_count"}:
        assert after[name].contents() == (replaced.get(name) or before[name].contents())
        assert name in replaced or after[name].types == before[name].types
    assert after["general.rare"].types == [gguf.GGUFValueType.UINT64]


def test_the_report(floats, tmp_path, capsys):
    path = tmp_path / "m.gguf"
    quantize(str(floats), path, "q4_1", False, False, True)
    report = json.loads(capsys.readouterr().out)
    before, after = read_gguf(floats).tensors, read_gguf(path).tensors
    assert report["bytes_before"] == sum(tensor.nbytes for tensor in before.values())
    assert report["bytes_after"] == sum(tensor.nbytes for tensor in after.values())
    assert [line["name"] for line in report["tensors"]] == list(after)
    for line in report["tensors"]:
        values, stored = dequantize(before[line["name"]]), dequantize(after[line["name"]])
        assert line["error"] == pytest.approx(distance(stored, values), abs=1e-6)
        assert (line["source"], line["format"]) == (before[line["name"]].format, after[line["name"]].format)
    quantize(str(floats), path, "q4_1", True, False, False)
    table = capsys.readouterr().out.splitlines()
    errors = {line["name"]: f"{line['error']:.2%}" for line in report["tensors"]}
    parts, row = table[1].split()[1:], table[3].split()
    assert row == ["1", *(errors[f"blk.1.{part}.weight"] for part in parts)]
    assert len(parts) == 7
    worst = max(report["tensors"], key=lambda line: line["error"])
    assert f"worst: {worst['name']}, {worst['format']}: {worst['error']:.2%}" in table
    assert f"token_embd.weight, Q8_0: {errors['token_embd.weight']}" in table


def test_a_quantized_source_is_taken_only_when_asked(tmp_path):
    source, path = write_tiny_gguf(tmp_path / "q8.gguf"), tmp_path / "m.gguf"
    with pytest.raises(CheckpointError, match=r"is quantized already .* --allow-requantize"):
        quantize(str(source), path, "q4_0", False, False, False)
    assert not path.exists()
    quantize(str(source), path, "q4_0", False, True, False)
    before, after = read_gguf(source).tensors, read_gguf(path).tensors
    assert np.array_equal(after["token_embd.weight"].data, before["token_embd.weight"].data)
    assert after["blk.0.attn_q.weight"].format == Format.Q4_0


def test_nothing_is_overwritten_unless_asked(floats, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_text("precious")
    with pytest.raises(StartupError, match="is there already"):
        quantize(str(floats), path, "q8_0", False, False, False)
    assert path.read_text() == "precious"
    quantize(str(floats), path, "q8_0", True, False, False)
    assert open_checkpoint(path).spec.name == "tiny"


@pytest.mark.parametrize(
    ("place", "says"),
    [("", "is a folder"), ("no/such/m.gguf", "cannot be written: No such file"), (None, "the source")],
)
def test_places_that_cannot_be_written_to(floats, tmp_path, place, says):
    destination = floats if place is None else tmp_path / place
    with pytest.raises(StartupError, match=says):
        quantize(str(floats), destination, "q8_0", True, False, False)


def test_a_failure_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("lightwell.cli.quantize.differences", lambda wanted, found: ["rope"])
    with pytest.raises(CheckpointError, match="rope would be understood as something else"):
        quantize(str(folder), tmp_path / "m.gguf", "q8_0", False, False, False)
    assert list(tmp_path.iterdir()) == []


def test_the_command(floats, tmp_path):
    words = ["quantize", str(floats), str(tmp_path / "m.gguf"), "--format", "q4_0"]
    line = [sys.executable, "-m", "lightwell.cli.main", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "relative RMS error by layer" in done.stdout
    again = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
