"""``lightwell bench machine``: the machine's limits, which every other figure is a share of.

Read bandwidth over working sets of several sizes, and the peak of each number format's instructions, with one thread
and with all, each pinned to a physical core.
"""

from collections.abc import Iterator

from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.errors import StartupError
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.threads import core_cpus, default_threads
from lightwell.units import Bytes, format_bytes, parse_bytes


def machine(sizes: list[str], repeat: int, threads: int | None, json: bool) -> None:
    """Print every limit. Raises StartupError for a size that is none, or more threads than there are cores."""
    counts = sorted({1, threads or default_threads()})
    _pinned(max(counts))  # before anything is printed
    for line in _lines(_working_sets(sizes), counts, repeat, json):
        print(line, flush=True)


def read_bandwidth(working_set: Bytes, threads: int, repeat: int) -> Runs:
    """Bytes per second of reading ``working_set`` bytes again and again, on huge pages as the weights are."""
    return Runs(tuple(_native.read_rates(working_set, _pinned(threads), repeat)))


def peak(isa: str, number_format: str, threads: int, repeat: int) -> Runs:
    """Operations per second (a multiplication and an addition are two) of one format's instructions.

    Raises ValueError where this machine cannot run them.
    """
    return Runs(tuple(_native.operation_rates(isa, number_format, _pinned(threads), repeat)))


def _lines(working_sets: list[Bytes], counts: list[int], repeat: int, json: bool) -> Iterator[str]:
    for size in working_sets:
        for count in counts:
            runs = read_bandwidth(size, count, repeat)
            label = f"read {format_bytes(size)}, {_threads(count)}"
            if json:
                yield as_json("read", runs, "bytes/s", threads=count, bytes=size)
            else:
                yield show(label, runs, "GB/s", scale=1e9, digits=1)
    for isa, number_format in _native.peak_formats():
        for count in counts:
            runs = peak(isa, number_format, count, repeat)
            label = f"{number_format}, {isa}, {_threads(count)}"
            if json:
                yield as_json("peak", runs, "ops/s", threads=count, isa=isa, format=number_format)
            else:
                yield show(label, runs, "Gops/s", scale=1e9)


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count > 1)


def _working_sets(sizes: list[str]) -> list[Bytes]:
    try:
        return [parse_bytes(size) for size in sizes]
    except ValueError as error:
        raise StartupError(str(error)) from None


def _pinned(threads: int) -> list[int]:
    """A CPU for each thread. Two threads on one core would measure something else, so there are no more than cores."""
    cpus = core_cpus()
    if threads > len(cpus):
        raise StartupError(f"{threads} threads were asked for, but this process may use {len(cpus)} physical cores.")
    return cpus[:threads]
