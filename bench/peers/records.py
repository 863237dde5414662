"""The raw results of a run as JSON lines, written as they come, so that the table can be made again from the file."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from bench.peers.workloads import Metrics

Key = tuple[str, str]  # row, subject


@dataclass
class Results:
    """``values[row, subject][round]`` are the metrics of one measurement; ``missing[row, subject]`` says why there is
    none; ``facts`` describe the machine and the subjects."""

    rows: list[str] = field(default_factory=list)
    values: dict[Key, dict[int, Metrics]] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    def series(self, row: str, subject: str, metric: str) -> dict[int, float]:
        """A metric by round; empty where it was not measured."""
        rounds = self.values.get((row, subject), {})
        return {number: metrics[metric] for number, metrics in rounds.items() if metric in metrics}

    def add(self, record: dict[str, Any]) -> None:
        match record:
            case {"kind": "fact", "name": name, "value": value}:
                self.facts[name] = value
            case {"kind": "row", "row": row}:
                self.rows.append(row)
            case {"kind": "missing", "row": row, "subject": subject, "reason": reason}:
                self.missing[row, subject] = reason
            case {"kind": "value", "row": row, "subject": subject, "round": number, "metrics": metrics}:
                self.values.setdefault((row, subject), {})[number] = metrics
            case _:
                raise ValueError(f"not a record of bench.peers: {record}")


@dataclass
class Recorder:
    """Adds each record to the results and to the file at once: a run that is broken off keeps what it measured."""

    results: Results
    file: TextIO

    def fact(self, name: str, value: str) -> None:
        self._add(kind="fact", name=name, value=value)

    def row(self, row: str) -> None:
        self._add(kind="row", row=row)

    def missing(self, row: str, subject: str, reason: str) -> None:
        self._add(kind="missing", row=row, subject=subject, reason=reason)

    def value(self, row: str, subject: str, number: int, metrics: Metrics) -> None:
        self._add(kind="value", row=row, subject=subject, round=number, metrics=metrics)

    def _add(self, **record: Any) -> None:
        self.results.add(record)
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()


def read_results(file: Path) -> Results:
    """Raises ValueError for a file that a run did not write."""
    results = Results()
    for record in _records(file.read_text(encoding="utf-8").splitlines()):
        results.add(record)
    return results


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield json.loads(line)
