"""Packed weights on disk: the same bytes with and without them, whatever happens to the files, never in the way."""

import errno
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.runtimes.cpu import _native, pack_cache, pack_file, weights
from lightwell.runtimes.cpu.pack_file import Source
from lightwell.runtimes.cpu.weights import PackedWeights
from tests.tiny import tiny_checkpoint
from tests.tiny_gguf import write_tiny_gguf

Bytes = dict[str, bytes]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    time.sleep(0.05)  # the cache does not trust files as young as its clock is coarse
    return path


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tensors, as they are packed."""
    names: list[str] = []
    pack = weights._pack
    monkeypatch.setattr(weights, "_pack", lambda path, tensor: names.append(tensor.name) or pack(path, tensor))
    return names


def load(model: Path | Checkpoint, *, cached: bool = True) -> Bytes:
    """The packed bytes of every matrix; returns when the cache is done with them."""
    checkpoint = open_checkpoint(model) if isinstance(model, Path) else model
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1]
    loaded = PackedWeights(checkpoint, matrices, 2, int8_activations=True, cached=cached)
    for thread in threading.enumerate():
        if thread.name == pack_cache.BACKGROUND:
            thread.join()
    return {tensor.name: loaded.matrix(tensor).packed.tobytes() for tensor in matrices}


def packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pack"))


def test_the_second_start_packs_nothing_and_has_the_same_bytes(model: Path, packed: list[str]) -> None:
    expected = load(model, cached=False)
    assert load(model) == expected
    packed.clear()
    assert load(model) == expected
    assert packed == []


def test_without_the_cache_nothing_is_written_or_read(model: Path, folder: Path, packed: list[str]) -> None:
    load(model, cached=False)
    assert not folder.exists()
    load(model)
    packed.clear()
    load(model, cached=False)
    assert packed


def test_a_copy_is_hashed_once_and_shares_the_pack(model: Path, folder: Path, packed: list[str]) -> None:
    expected = load(model)
    copy = Path(shutil.copy(model, model.with_name("copy.gguf")))
    time.sleep(0.05)
    assert load(copy) == expected  # packed, as its content is not known before it has been hashed
    assert len(packs(folder)) == 1
    packed.clear()
    assert load(copy) == expected
    assert packed == []


def replace_file(model: Path, other: Path) -> None:
    other.replace(model)


def write_over(model: Path, other: Path) -> None:
    times = model.stat()
    model.write_bytes(other.read_bytes())
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if nobody had been there


def link_to_other(model: Path, other: Path) -> None:
    model.unlink()
    model.symlink_to(other)


@pytest.mark.parametrize("change", [replace_file, write_over, link_to_other])
def test_another_model_at_the_same_path_is_another_model(model: Path, folder: Path, change) -> None:
    first = load(model)
    other = write_tiny_gguf(model.with_name("other.gguf"), seed=1)
    assert other.stat().st_size == model.stat().st_size
    change(model, other)
    time.sleep(0.05)
    expected = load(model, cached=False)
    assert expected != first
    assert load(model) == expected
    assert load(model) == expected
    assert len(packs(folder)) == 2


def test_a_file_that_changes_between_mapping_and_hashing_is_not_kept(model: Path, folder: Path) -> None:
    checkpoint = open_checkpoint(model)
    os.utime(model)
    load(checkpoint)
    assert not packs(folder)


def test_a_file_too_young_to_be_known_by_its_times_is_not_kept(tmp_path: Path, folder: Path) -> None:
    young = write_tiny_gguf(tmp_path / "young.gguf")
    checkpoint = open_checkpoint(young)
    checkpoint.maps[0].settled = False
    load(checkpoint)
    assert not folder.exists()


def test_tensors_that_lie_in_no_file_are_packed_as_ever(folder: Path) -> None:
    checkpoint = tiny_checkpoint()
    assert load(checkpoint) == load(checkpoint, cached=False)
    assert not folder.exists()


# Damage. The file's parts: header (24 bytes), index, zeros to 4096, matrices.
LENGTHS = [0, 1, 8, 23, 24, 25, 200, 4095, 4096, 4097, 20_000, -64, -1]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_truncated_pack_is_built_again(
    model: Path, folder: Path, packed: list[str], caplog: pytest.LogCaptureFixture, length: int
) -> None:
    expected = load(model)
    (pack,) = packs(folder)
    whole = pack.read_bytes()
    pack.write_bytes(whole[:length])
    with caplog.at_level(logging.WARNING):
        assert load(model) == expected
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"{pack} is damaged"]
    assert pack.read_bytes() == whole
    packed.clear()
    assert load(model) == expected
    assert packed == []


@pytest.mark.parametrize("at", [0, 7, 8, 12, 16, 20, 24, 60, 4096, 20_000, -1])
def test_a_flipped_bit_is_found(model: Path, folder: Path, caplog: pytest.LogCaptureFixture, at: int) -> None:
    expected = load(model)
    (pack,) = packs(folder)
    whole = bytearray(pack.read_bytes())
    whole[at] ^= 1
    pack.write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        assert load(model) == expected
    assert "is damaged" in caplog.text
    whole[at] ^= 1
    assert pack.read_bytes() == whole


def test_a_pack_that_is_longer_than_it_should_be_is_damaged(model: Path, folder: Path) -> None:
    expected = load(model)
    (pack,) = packs(folder)
    whole = pack.read_bytes()
    pack.write_bytes(whole + b"x")
    assert load(model) == expected
    assert pack.read_bytes() == whole


def test_a_pack_of_another_packing_under_this_name_is_not_used(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as older:
        older.setattr(pack_file, "PACKING", "0-0-0x0x0")
        expected = load(model)
    with caplog.at_level(logging.WARNING):
        assert load(model) == expected
    assert "packed as 0-0-0x0x0" in caplog.text


def test_raising_the_packing_version_makes_a_new_pack_and_removes_the_old_one(
    model: Path, folder: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(model)
    old = packs(folder)
    for module in (pack_cache, pack_file):
        monkeypatch.setattr(module, "PACKING", "1-2-16x32x4")
    packed.clear()
    assert load(model) == expected
    assert packed
    assert len(packs(folder)) == 1
    assert packs(folder) != old
    assert all(link.exists() for link in folder.glob("*.link"))


def test_a_pack_without_a_matrix_that_is_needed_is_written_again(model: Path, packed: list[str]) -> None:
    checkpoint = open_checkpoint(model)
    some = [tensor for tensor in checkpoint.tensors.values() if ".q." in tensor.name or "attn_q" in tensor.name]
    matrices = {
        source: _native.PackedMatrix(tensor.data, tensor.format, tensor.rows, tensor.columns)
        for tensor in some
        for source in weights._sources(checkpoint.maps, [tensor]).values()
    }
    pack_cache.keep("tiny", checkpoint.maps, matrices)
    expected = load(model)
    packed.clear()
    assert load(model) == expected
    assert packed == []


# Disks that do not cooperate.


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_a_full_disk_costs_one_warning(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, after: int
) -> None:
    calls = 0
    whole = os.writev

    def full(file: int, buffers: list[memoryview] | None = None) -> int:
        nonlocal calls
        calls += 1
        if call == "writev" and calls <= after and buffers:  # some of it still fits
            return whole(file, [buffers[0][: max(1, len(buffers[0]) // 2)]])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected = load(model, cached=False)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, call, full)
        assert load(model) == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"packed weights are not kept in {folder}: No space left on device"
    ]
    assert list(folder.iterdir()) == []
    assert load(model) == expected
    assert len(packs(folder)) == 1


def test_writes_may_come_in_pieces(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda file, buffers: whole(file, [buffers[0][:1000]]))
    expected = load(model)
    monkeypatch.undo()
    monkeypatch.setenv("LIGHTWELL_CACHE", str(folder.parent))
    assert load(model) == expected
    (pack,) = packs(folder)
    with pack.open("rb") as file:
        pack_file.read_pack(file, 1)


def test_little_room_is_left_alone(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(model)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with caplog.at_level(logging.WARNING):
        load(model)
    assert "of the 1000 B that are free" in caplog.text
    assert len(caplog.records) == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("where", ["folder", "above"])
def test_a_folder_that_cannot_be_written_costs_one_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """A file in the folder's place, since permissions do not stop everybody who runs tests."""
    blocked = tmp_path / "blocked"
    if where == "folder":
        blocked.mkdir()
    (blocked / "packed" if where == "folder" else blocked).touch()
    monkeypatch.setenv("LIGHTWELL_CACHE", str(blocked))
    expected = load(model, cached=False)
    with caplog.at_level(logging.WARNING):
        assert load(model) == expected
    assert all("packed weights" in record.getMessage() for record in caplog.records)
    assert any("not kept" in record.getMessage() for record in caplog.records)


def test_a_read_only_cache_is_still_used(model: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(model)
    packed.clear()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    assert load(model) == expected
    assert packed == []


# Several at once.


def _load_at(barrier, model: Path, results) -> None:
    barrier.wait()
    results.put(load(model))


@pytest.mark.parametrize("kept", [False, True], ids=["empty", "kept"])
def test_two_starting_at_once_have_the_same_bytes_and_leave_one_pack(model: Path, folder: Path, kept: bool) -> None:
    expected = load(model, cached=kept)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_load_at, args=(barrier, model, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=120) for _ in processes] == [expected, expected]
    for process in processes:
        process.join()
    assert [path.suffix for path in sorted(folder.iterdir())] in (
        [".pack", ".link"],
        [".link", ".pack"],
    )
    (pack,) = packs(folder)
    with pack.open("rb") as file:
        pack_file.read_pack(file, 1)


def test_a_part_that_another_process_is_writing_is_left_alone(model: Path, folder: Path) -> None:
    load(model)
    (pack,) = packs(folder)
    pack.unlink()
    part = pack.with_suffix(".part")
    hold = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        load(model)
        assert part.read_bytes() == b""
        assert not packs(folder)
        holder.stdin.write("\n")
    load(model)  # a part whose writer is gone is written over
    assert packs(folder) == [pack]
    assert not part.exists()


# What is kept, and how much of it.


def test_the_least_recently_used_packs_are_evicted(
    tmp_path: Path, folder: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "MOST_PACKS", 2)
    models = [write_tiny_gguf(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(3)]
    time.sleep(0.05)
    for each in (models[0], models[1], models[0], models[2]):
        load(each)
        time.sleep(0.02)
    assert {pack.model for pack in pack_cache.kept()} == {"0.gguf", "2.gguf"}
    packed.clear()
    load(models[0])
    load(models[2])
    assert packed == []
    assert len(list(folder.glob("*.link"))) == 2


def test_a_part_of_a_killed_process_is_removed(model: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "abandoned.part").write_bytes(b"half")
    load(model)
    assert not list(folder.glob("*.part"))


def test_what_is_kept_can_be_listed_and_cleared(model: Path, folder: Path) -> None:
    assert pack_cache.kept() == []
    load(model)
    (folder / "other.pack").write_bytes(b"nothing")
    assert {pack.model for pack in pack_cache.kept()} == {"tiny.gguf", None}
    pack_cache.clear()
    pack_cache.clear()
    assert pack_cache.kept() == []
    assert not folder.exists()


# Huge pages.


@pytest.fixture(params=[0, 1 << 40], ids=["small pages", "huge pages"])
def huge_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pack_file, "_huge_bytes", lambda place: request.param)
    monkeypatch.setattr(pack_file, "_HUGE_PAGES", Path(os.devnull))
    return request.param


def test_small_pages_are_copied_and_huge_ones_are_not(
    model: Path, huge_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(model)
    copies = []
    empty = _native.empty_weights
    monkeypatch.setattr(_native, "empty_weights", lambda count: copies.append(count) or empty(count))
    assert load(model) == expected
    assert len(copies) == (huge_bytes == 0)


def test_a_file_that_gets_shorter_while_it_is_read_is_packed_again(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = load(model)
    monkeypatch.setattr(pack_file, "_in_huge_pages", lambda data: False)
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: 0)
    assert load(model) == expected
    assert "shorter" in caplog.text


def test_a_file_that_comes_in_parts_is_read_whole(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(model)
    whole = os.preadv
    monkeypatch.setattr(pack_file, "_in_huge_pages", lambda data: False)
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: whole(file, [buffers[0][:1000]], offset))
    monkeypatch.setattr(_native, "PackedMatrix", _OnlyPacked)
    assert load(model) == expected


class _OnlyPacked:
    """Matrices from a file; to pack one fails the test."""

    of_packed = _native.PackedMatrix.of_packed


def test_the_huge_pages_of_a_mapping_are_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "1000-3000 r--s 00000000 fe:00 7 /a\nFilePmdMapped:   8 kB\nVmFlags: rd\n"
        "3000-9000 r--s 00000000 fe:00 8 /b\nRss: 1 kB\nFilePmdMapped:   4096 kB\nVmFlags: rd\n"
    )
    monkeypatch.setattr(pack_file, "_SMAPS", smaps)
    assert pack_file._huge_bytes(0x2FFF) == 8192
    assert pack_file._huge_bytes(0x3000) == 4 << 20
    assert pack_file._huge_bytes(0x9000) == 0


def test_an_index_that_does_not_fit_its_matrices_is_damage(model: Path, folder: Path, tmp_path: Path) -> None:
    matrix = _native.PackedMatrix(open_checkpoint(model).tensors["embed.weight"].data, "Q8_0", 260, 64)
    for rows, columns in ((261 + 16, 64), (260, 96), (0, 64), (2**62, 2**62)):
        with (tmp_path / "pack").open("w+b") as file:
            pack_file.write_pack(file, "x", {Source(0, 0, "Q8_0", rows, columns): matrix})
            file.seek(0)
            with pytest.raises(pack_file.Damaged, match="does not have"):
                pack_file.read_pack(file, 1)


def test_packed_bytes_must_be_aligned_and_as_many_as_the_shape_takes() -> None:
    data = _native.empty_weights(4096)
    with pytest.raises(ValueError, match="does not have 100 bytes"):
        _native.PackedMatrix.of_packed(data[:100], "Q8_0", 16, 32)
    with pytest.raises(ValueError, match="does not have 4096 bytes"):
        _native.PackedMatrix.of_packed(data, "Q8_0", 2**62, 32)
    size = _native.PackedMatrix(data[: 16 * 34], "Q8_0", 16, 32).nbytes
    with pytest.raises(ValueError, match="64-byte"):
        _native.PackedMatrix.of_packed(data[1 : 1 + size], "Q8_0", 16, 32)
    kept = _native.PackedMatrix.of_packed(data[64 : 64 + size], "Q8_0", 16, 32)
    del data
    assert kept.packed.tobytes() == bytes(size)
