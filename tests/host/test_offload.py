"""The offload file, and the decision whether there is one."""

import errno
import os
from dataclasses import replace

import pytest

from lightwell.errors import StartupError
from lightwell.events import EventLog
from lightwell.host import offload
from lightwell.host.build import build_engine
from lightwell.host.messages import EngineConfig
from lightwell.host.offload import compute_block, offload_file, set_up_offload, time_moves
from lightwell.runtimes.fake import FakeRuntime
from tests.tiny_gguf import write_tiny_gguf

BLOCK = 4096


def config(**others) -> EngineConfig:
    return EngineConfig("tiny.gguf", "tiny", kv_blocks=4, context_tokens=128, **{"kv_offload": 10 * BLOCK} | others)


def allocated() -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.allocate(4)
    return runtime


def seconds(monkeypatch, moving: float, computing: float) -> None:
    monkeypatch.setattr(offload, "time_moves", lambda file, blocks, block_bytes: (moving / 2, moving / 2))
    monkeypatch.setattr(offload, "compute_block", lambda runtime: computing)


def test_a_file_has_its_whole_size_reserved_and_no_name(tmp_path):
    with offload_file(tmp_path / "new", 1 << 20) as file:
        assert os.fstat(file.fileno()).st_size == 1 << 20
        assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20
        assert list((tmp_path / "new").iterdir()) == []


def test_a_full_disk_is_an_error_that_names_size_and_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StartupError, match=rf"4\.0 GiB in {tmp_path} cannot be made: No space left on device"):
        offload_file(tmp_path, 4 << 30)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"--kv-offload: a file of 1\.0 KiB in .*file/folder cannot be made"):
        offload_file(tmp_path / "file" / "folder", 1024)


def test_a_store_that_pays_is_given_to_the_runtime(tmp_path, monkeypatch):
    seconds(monkeypatch, moving=0.002, computing=0.030)
    made = set_up_offload(config(), allocated(), BLOCK, tmp_path)
    assert made.slots == 10
    assert made.report == (
        "40.0 KiB: 10 blocks; a block goes out in 1.0 ms and comes back in 1.0 ms, computing it takes 30.0 ms"
    )


def test_a_store_that_would_not_pay_is_off_and_says_so(tmp_path, monkeypatch):
    seconds(monkeypatch, moving=0.04, computing=0.03)
    runtime = allocated()
    made = set_up_offload(config(), runtime, BLOCK, tmp_path)
    assert made.slots == 0
    assert made.report.startswith("off, as it would not pay: a block goes out in 20.0 ms and comes back in 20.0 ms")
    assert runtime._offload_slots == 0


def test_less_than_a_block_or_a_store_without_prefix_cache_is_an_error(tmp_path):
    with pytest.raises(StartupError, match=r"--kv-offload 1\.0 KiB is less than one block of 4\.0 KiB"):
        set_up_offload(config(kv_offload=1024), allocated(), BLOCK, tmp_path)
    with pytest.raises(StartupError, match="needs --enable-prefix-caching"):
        set_up_offload(config(prefix_cache=False), allocated(), BLOCK, tmp_path)


def test_the_probe_writes_and_reads_whole_blocks(tmp_path):
    with offload_file(tmp_path, 4 * BLOCK) as file:
        out, back = time_moves(file, 4, BLOCK)
        assert out > 0
        assert back > 0
        blocks = [os.pread(file.fileno(), BLOCK, i * BLOCK) for i in range(4)]
    assert len(set(blocks)) == 1
    assert len(set(blocks[0])) > 200, "nothing that compresses"


def test_computing_a_block_is_measured_the_second_time():
    class Counting(FakeRuntime):
        steps = 0

        def execute(self, step, logits=None):
            self.steps += 1
            return replace(super().execute(step), duration=float(self.steps))

    runtime = Counting()
    runtime.allocate(1)
    assert compute_block(runtime) == 2.0


@pytest.mark.parametrize("asked", [0, 1 << 20])
def test_an_engine_is_built_with_the_store_that_was_asked_for(tmp_path, monkeypatch, asked):
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path / "cache"))
    seconds(monkeypatch, moving=0.001, computing=1.0)
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    engine, hello = build_engine(replace_config(config(), str(path), asked))
    assert engine.scheduler.pool._store.slots == (asked // (hello.kv_bytes // hello.kv_blocks))
    assert hello.details["KV offload"].startswith("1.0 MiB" if asked else "off")
    assert isinstance(engine.log, EventLog)


def replace_config(made: EngineConfig, model: str, kv_offload: int) -> EngineConfig:
    return EngineConfig(model, made.name, made.kv_blocks, made.context_tokens, runtime="fake", kv_offload=kv_offload)
