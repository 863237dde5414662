"""Model names to files: what a name stands for, and pulling the file when it is not on this machine yet.

A name is one of the catalog's, ``hf:org/repo/file.gguf``, or a path of a file or folder, looked at in this order.
"""

import contextlib
import difflib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from lightwell.checkpoints.known import HubFile, KnownModel, find, known_models
from lightwell.checkpoints.sources import SourceFailed, download_from_hub, fetch, find_in_hub_cache
from lightwell.errors import ModelNotFound, StartupError
from lightwell.units import Bytes, format_bytes

Progress = Callable[[Bytes, Bytes], None]  # bytes that have arrived, bytes in all

_HUB_PREFIX = "hf:"
_HUB_FORM = "hf:organisation/repository/file.gguf"


def cache_folder() -> Path:
    """Where pulled models lie: LIGHTWELL_CACHE, or ``~/.cache/lightwell/models``."""
    return Path(os.environ.get("LIGHTWELL_CACHE") or "~/.cache/lightwell/models").expanduser()


def list_models() -> list[tuple[KnownModel, Path | None]]:
    """Every model of the catalog, and its file where it has been pulled."""
    return [(model, _pulled(model)) for model in known_models()]


def resolve(name: str) -> Path | None:
    """The file or folder that a name stands for; None when it must be pulled first.

    Raises ModelNotFound for a name that is not known and a path where nothing lies.
    """
    if name.startswith(_HUB_PREFIX):
        return find_in_hub_cache(_hub_file(name))
    model = find(name)
    return _existing_path(name) if model is None else _pulled(model)


def pull(name: str, progress: Progress | None = None) -> Path:
    """The file or folder that a name stands for, downloaded and verified first where need be.

    Safe when several processes pull the same name: one downloads, the others wait for it. ``progress`` is called
    with bytes while wheels arrive and once at the end; without it a terminal shows a bar.

    Raises ModelNotFound as resolve does, StartupError when no source gives the right file.
    """
    if (found := resolve(name)) is not None:
        return found
    model = find(name)
    return _pull_from_hub(name) if model is None else _pull_known(model, progress)


def _hub_file(name: str) -> HubFile:
    parts = name.removeprefix(_HUB_PREFIX).split("/")
    if len(parts) < 3 or not all(parts) or not name.endswith(".gguf"):
        raise ModelNotFound(f"{name!r} does not name a file on the hub: write {_HUB_FORM}")
    return HubFile("/".join(parts[:2]), "/".join(parts[2:]))


def _pull_from_hub(name: str) -> Path:
    try:
        return download_from_hub(_hub_file(name))
    except SourceFailed as error:
        raise StartupError(f"cannot pull {name}: {error}") from error


def _existing_path(name: str) -> Path:
    path = os.path.expanduser(name)
    if not name or not os.path.exists(path):
        raise _unknown(name)
    return Path(path)


def _unknown(name: str) -> ModelNotFound:
    if "/" in name or os.sep in name or name.endswith(".gguf"):
        return ModelNotFound(f"there is no file or folder {name!r}; a file on the hub is {_HUB_FORM}")
    names = [known for model in known_models() for known in (model.name, *model.aliases)]
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return ModelNotFound(
        f"there is no model {name!r}. {hint}Known models: {', '.join(names)}. "
        f"Or give the path of a .gguf file or a Hugging Face folder, or {_HUB_FORM}"
    )


def _path(model: KnownModel) -> Path:
    return cache_folder() / model.file


def _pulled(model: KnownModel) -> Path | None:
    """A file gets its name only once it is whole and verified, so the size is check enough here."""
    path = _path(model)
    return path if path.is_file() and path.stat().st_size == model.size else None


def _pull_known(model: KnownModel, progress: Progress | None) -> Path:
    _make_cache_folder()
    staging = cache_folder() / f".{model.file}.pull"
    with _locked(cache_folder() / f".{model.file}.lock", model.name), _reporting(model, progress) as report:
        if (found := _pulled(model)) is not None:  # by the process that held the lock before
            return found
        staging.mkdir(exist_ok=True)
        return _pull_from_first(model, staging, report)


def _make_cache_folder() -> None:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"cannot make {folder} for models: {error.strerror}. Set LIGHTWELL_CACHE") from error


def _pull_from_first(model: KnownModel, staging: Path, report: Progress) -> Path:
    failures = []
    for source in model.sources:
        _say(f"Pulling {model.name} ({format_bytes(model.size)}, licence {model.licence}) from the {source}")
        try:
            fetched = staging / "model"
            fetched.unlink(missing_ok=True)
            fetch(source, fetched, staging, lambda done: report(min(done, model.size), model.size))
            _verify(model, fetched, staging)
        except SourceFailed as error:
            _say(f"  failed: {error}")
            failures.append(f"{source}: {error}")
            continue
        fetched.replace(_path(model))
        shutil.rmtree(staging, ignore_errors=True)  # what a killed pull's pip may still write there can stay
        report(model.size, model.size)
        return _path(model)
    raise StartupError(f"cannot pull {model.name}: " + "; ".join(failures))


def _verify(model: KnownModel, fetched: Path, staging: Path) -> None:
    """Raises SourceFailed, and throws all that was downloaded away, when the digest is not the catalog's."""
    with fetched.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(exist_ok=True)
        raise SourceFailed(f"the file's SHA-256 is {digest} instead of {model.sha256}: it is damaged or another file")


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system drops it if this one dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Another process is pulling {name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _reporting(model: KnownModel, progress: Progress | None) -> Iterator[Progress]:
    """The caller's progress function, else a bar on a terminal, else nothing."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda done, total: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Bar(*columns, console=Console(stderr=True))
    task = bar.add_task(model.name, total=model.size)

    def report(done: Bytes, total: Bytes) -> None:
        bar.start()  # only now, as the hub draws a bar of its own
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
