"""How many compute threads to start: the physical cores that this process may use, and no more than it is given."""

import math
import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def default_threads() -> int:
    """Physical cores within the process's affinity mask and its control group's CPU quota, at least one.

    Two threads on one core share its arithmetic units, so hyper-threads would only add waiting.
    """
    return max(1, math.floor(min(len(core_cpus()), _quota())))


def core_cpus() -> list[int]:
    """The first of the allowed logical CPUs of each physical core, in ascending order."""
    first: dict[str, int] = {}
    for cpu in _allowed_cpus():
        first.setdefault(_core(cpu), cpu)
    return list(first.values())


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS has no affinity masks


def _core(cpu: int) -> str:
    """What names the physical core of a logical CPU: its siblings; itself where the system does not say."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> float:
    """CPUs that the control groups around this process allow it; infinite without a limit."""
    return min(map(_quota_of, _groups()), default=math.inf)


def _groups() -> list[Path]:
    """This process's control group and those above it (version 2), and the root of version 1's cpu controller, which
    is where a container sees its own limit."""
    try:
        own = _OWN_GROUP.read_text().rpartition("0::/")[2].strip()
    except OSError:
        return []
    group = _CGROUPS / own
    return [group, *(parent for parent in group.parents if parent.is_relative_to(_CGROUPS)), _CGROUPS / "cpu"]


def _quota_of(group: Path) -> float:
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((group / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return math.inf
