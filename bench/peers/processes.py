"""Processes of the subjects: started apart from ours, frozen while another is measured, weighed, and ended for sure.

Linux only, as is the comparison: it reads /proc.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from bench.peers.workloads import Unavailable
from lightwell.cli.bench_start import with_bytecode
from lightwell.units import Bytes, Seconds

_PATIENCE: Seconds = 20.0  # for a server that was asked to end
_PROC = Path("/proc")


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """In a session of its own; what it prints goes to ``log``. Raises Unavailable where it cannot be started at all."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        output: int | IO[bytes] = file if stdout is None else stdout
        try:
            return subprocess.Popen(
                list(command),
                env={**with_bytecode(), **environment},
                stdin=stdin,
                stdout=output,
                stderr=file,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error.strerror}") from None


def last_words(log: Path) -> str:
    """The last line of a log with words in it, for a reason in the table."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip(" │") for line in text.splitlines() if any(map(str.isalpha, line))]
    return lines[-1][:300] if lines else "it said nothing"


def family(pid: int) -> list[int]:
    """The process and all below it, itself first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:  # grows as it goes
        found += children.get(member, [])
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The name before it may hold spaces and brackets; the state and the parent follow its last bracket.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):  # it ended meanwhile
        return None


def signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Nobody's idle threads may take the cores from who is being measured."""
    signal_all(family(process.pid), signal.SIGSTOP)


def thaw(process: subprocess.Popen[bytes]) -> None:
    signal_all(family(process.pid), signal.SIGCONT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; whatever of its family is left after a while is killed."""
    members = family(process.pid)
    signal_all(members, signal.SIGCONT)
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    signal_all([pid for pid in members[1:] if _PROC.joinpath(str(pid)).exists()], signal.SIGKILL)


def resident_bytes(process: subprocess.Popen[bytes]) -> Bytes:
    """Of the whole family; a page that n processes share counts a n-th in each (Pss), so once."""
    return sum(_proportional(pid) for pid in family(process.pid))


def _proportional(pid: int) -> Bytes:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
