"""Packed weights kept on disk, so that a model is packed once and not at every start.

A pack is named by the SHA-256 of the model's files and the packing. Hashing a large file at every start would take
longer than the cache saves, so a link, named by the files' identities (path, inode, size, times), leads to the pack.
A file that was written to or replaced has another identity: then the weights are packed as if there were no cache.
All that the cache cannot do costs time and a warning, never a start.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lightwell.checkpoints.mapping import FileIdentity, MappedFile, identify
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.pack_file import PACKING, Damaged, Source, read_index, read_pack, write_pack
from lightwell.units import Bytes, Seconds, format_bytes

BACKGROUND = "keep packed weights"  # the name of the thread
MOST_PACKS = 8
_MOST_LINKS = 64  # a few for each pack: the same file at several paths, or moved
_FREE_SHARE = 0.5  # a pack may take so much of what is free on the disk
_LOWEST_PRIORITY = 19
_SUFFIX = ".pack"

_log = logging.getLogger(__name__)

Matrices = Mapping[Source, _native.PackedMatrix]


def cache_folder() -> Path:
    """$LIGHTWELL_CACHE/packed, or ~/.cache/lightwell/packed."""
    return Path(os.environ.get("LIGHTWELL_CACHE") or "~/.cache/lightwell").expanduser() / "packed"


def load(files: Sequence[MappedFile], needed: set[Source], threads: int) -> Matrices | None:
    """The packed matrices of a model's files, every byte checked; None where they must be packed."""
    link = _link([file.identity for file in files])
    try:
        path = link.resolve(strict=True)
        with path.open("rb") as file:
            matrices = read_pack(file, threads)
    except FileNotFoundError:
        return None
    except Damaged as error:
        _log.warning("%s is damaged: %s. Packing the weights again.", path, error)
        _remove(path)
        return None
    except OSError as error:
        _log.warning("packed weights cannot be read from %s: %s. Packing them again.", link, error.strerror)
        return None
    if not needed <= matrices.keys():
        return None
    with suppress(OSError):  # a cache that is shared read-only
        os.utime(path)  # what was used last is evicted last
    return matrices


def keep_in_background(model: str, files: Sequence[MappedFile], matrices: Matrices) -> None:
    """Keep freshly packed matrices while the caller goes on; the process ends only when it is done."""

    def work() -> None:
        with suppress(OSError, AttributeError):  # on Linux this is the thread's own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        keep(model, files, matrices)

    threading.Thread(target=work, name=BACKGROUND).start()


def keep(model: str, files: Sequence[MappedFile], matrices: Matrices) -> None:
    """Put the matrices on disk, and a link to them; ``model`` is a name for people."""
    try:
        content = _content(files)
        if content is None:  # changed since it was mapped, or so young that a change would not show
            return
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        pack = folder / f"{content}.{PACKING}{_SUFFIX}"
        if not _holds(pack, matrices) and not _write(pack, model, matrices):
            return
        _point(_link([file.identity for file in files]), pack)
        _evict(pack)
    except OSError as error:
        _log.warning("packed weights are not kept in %s: %s", cache_folder(), error.strerror or error)


@dataclass(frozen=True)
class Kept:
    """One pack, for people; ``model`` None: of another version, or damaged."""

    path: Path
    model: str | None
    bytes: Bytes
    used: Seconds  # since the epoch


def kept() -> list[Kept]:
    """What the cache holds, the last used first."""
    return [_described(path) for path in _newest(cache_folder().glob(f"*{_SUFFIX}"))]


def clear() -> None:
    """Remove everything; engines that use a pack keep what they have mapped. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(cache_folder())


def _described(path: Path) -> Kept:
    status = path.stat()
    try:
        with path.open("rb") as file:
            model = read_index(file)[0].model
    except (OSError, Damaged):
        model = None
    return Kept(path, model, status.st_size, status.st_mtime)


def _link(identities: Sequence[FileIdentity]) -> Path:
    digest = hashlib.sha256(repr((PACKING, *identities)).encode()).hexdigest()
    return cache_folder() / f"{digest[:32]}.link"


def _content(files: Sequence[MappedFile]) -> str | None:
    """A digest of what the mapped files hold; None where that is not certain."""
    digest = hashlib.sha256()
    for mapped in files:
        if not mapped.settled:
            return None
        with open(mapped.identity.path, "rb") as file:
            same = identify(file) == mapped.identity
            digest.update(hashlib.file_digest(file, "sha256").digest())
            if not same or identify(file) != mapped.identity:
                return None
    return digest.hexdigest()[:32]


def _holds(pack: Path, matrices: Matrices) -> bool:
    try:
        with pack.open("rb") as file:
            return matrices.keys() <= {place.source for place in read_index(file)[0].matrices}
    except (FileNotFoundError, Damaged):
        return False


def _write(pack: Path, model: str, matrices: Matrices) -> bool:
    """Put a pack in place, whole. False where there is too little room, or another process is at it already."""
    size, free = sum(matrix.nbytes for matrix in matrices.values()), shutil.disk_usage(pack.parent).free
    if size > free * _FREE_SHARE:
        _log.warning(
            "packed weights are not kept in %s: they take %s of the %s that are free",
            pack.parent,
            format_bytes(size),
            format_bytes(free),
        )
        return False
    part = pack.with_suffix(".part")
    with _alone(part) as file:
        if file is None:
            return False
        try:
            file.truncate(0)
            write_pack(file, model, matrices)
            part.replace(pack)
        except BaseException:
            _remove(part)
            raise
    return True


@contextmanager
def _alone(part: Path) -> Iterator[BinaryIO | None]:
    """The file opened to be written by this process only; None where another is writing it, or just has."""
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(file.fileno()), part.stat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
        yield file if mine else None


def _point(link: Path, pack: Path) -> None:
    """Identities of other content cannot have this link's name, so a link that stands is replaced by an equal one."""
    with suppress(FileExistsError):
        link.symlink_to(pack.name)


def _evict(newest: Path) -> None:
    """Remove packs of the same content in another packing, all but the last used ones, and what leads nowhere."""
    packs = _newest(newest.parent.glob(f"*{_SUFFIX}"))
    content = newest.name.partition(".")[0]
    for path in packs:
        if path != newest and path.name.startswith(f"{content}."):
            _remove(path)
    for path in packs[MOST_PACKS:]:
        _remove(path)
    for part in newest.parent.glob("*.part"):
        with _alone(part) as abandoned:  # by a process that was killed
            if abandoned:
                _remove(part)
    links = _newest(newest.parent.glob("*.link"))
    for path in [*links[_MOST_LINKS:], *(link for link in links if not link.exists())]:
        _remove(path)


def _newest(paths: Iterator[Path]) -> list[Path]:
    """The last used first. Another process may remove any of them meanwhile."""
    times = {}
    for path in paths:
        with suppress(FileNotFoundError):
            times[path] = path.lstat().st_mtime
    return sorted(times, key=times.__getitem__, reverse=True)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
