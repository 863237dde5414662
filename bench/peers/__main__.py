"""Measure Lightwell beside its peers, or beside the machine's limits, and print the table.

    python -m bench.peers [peers|limits] [--rows decode,served-16] [--peers llama.cpp,OpenVINO] [--rounds 5]
    python -m bench.peers --print build/peers/results/FILE.jsonl

The exit code is 1 where a row falls short of what is demanded, or could not be measured (unless --allow-missing).
"""

import argparse
import datetime
import os
import platform
import signal
import sys
from fnmatch import fnmatch
from pathlib import Path

from bench.peers.install import ENVIRONMENTS, installed_version
from bench.peers.records import Recorder, Results, read_results
from bench.peers.rounds import run
from bench.peers.rows import PEERS, Row, limit_rows, peer_rows
from bench.peers.subjects import opener
from bench.peers.table import exit_code, lines, render
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.threads import default_threads


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("against", nargs="?", choices=("peers", "limits"), default="peers")
    parser.add_argument("--rows", default="*", help="names or patterns of rows, with commas between; see --list")
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers to measure, with commas between")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds; one more before them warms up")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--folder", type=Path, default=Path("build/peers"), help="environments, logs and results")
    parser.add_argument(
        "--venv", action="append", default=[], metavar="NAME=FOLDER", help="an environment that is there"
    )
    parser.add_argument("--no-install", action="store_true", help="measure only the peers that are there")
    parser.add_argument("--allow-missing", action="store_true", help="exit 0 where something was not measured")
    parser.add_argument("--print", type=Path, metavar="FILE", help="print the table of an earlier run's results")
    parser.add_argument("--list", action="store_true", help="list the rows and what they measure")
    options = parser.parse_args(words)
    unknown = set(options.peers.split(",")) - {*PEERS, ""}
    if unknown:
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if not all(venv.partition("=")[0] in ENVIRONMENTS and venv.partition("=")[2] for venv in options.venv):
        parser.error(f"--venv takes NAME=FOLDER with a name of {', '.join(ENVIRONMENTS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def select(rows: list[Row], patterns: str) -> list[Row]:
    """The rows whose name matches a pattern, in the table's order. Raises SystemExit where a pattern matches none."""
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    for pattern in wanted:
        if not any(fnmatch(row.name, pattern) for row in rows):
            raise SystemExit(f"no row is called {pattern}; there are: {', '.join(row.name for row in rows)}")
    return [row for row in rows if any(fnmatch(row.name, pattern) for pattern in wanted)]


def measure(rows: list[Row], options: argparse.Namespace) -> Results:
    venvs = {name: Path(folder).absolute() for name, _, folder in (venv.partition("=") for venv in options.venv)}
    folder = options.folder.absolute()
    results_file = folder / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.jsonl"
    results_file.parent.mkdir(parents=True, exist_ok=True)
    peers = frozenset(filter(None, options.peers.split(",")))
    chosen = peers | {subject for row in rows for subject in row.subjects if subject not in PEERS}
    results = Results()
    with results_file.open("w", encoding="utf-8") as file:
        recorder = Recorder(results, file)
        recorder.fact("machine", f"{_processor()}, {os.cpu_count()} CPUs, {', '.join(_native.available_isas())}")
        recorder.fact("run", f"{options.rounds} rounds, {options.threads} threads, {results_file.name}")
        run(rows, chosen, options.rounds, opener(folder, venvs, install=not options.no_install), recorder)
        for name in ENVIRONMENTS:
            if (venv := venvs.get(name, folder / name)).is_dir():
                recorder.fact(name, installed_version(venv, name))
    return results


def _processor() -> str:
    try:
        names = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        return next(names).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    everything = [*peer_rows(options.threads), *limit_rows(options.threads)]
    rows = select(
        peer_rows(options.threads) if options.against == "peers" else limit_rows(options.threads), options.rows
    )
    if options.list:
        print("\n".join(f"{row.name:<24} {row.says}" for row in rows))
        return 0
    if options.print:
        results = read_results(options.print)
        rows = [row for row in everything if row.name in results.rows]
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that every process is ended on the way out
        results = measure(rows, options)
    table = list(lines(rows, results))
    print(render(table, results))
    return exit_code(table, allow_missing=options.allow_missing)


if __name__ == "__main__":
    sys.exit(main())
