"""From results to the table: medians, spreads, ratios round by round, verdicts, and the exit code they stand for."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from bench.peers.records import Results
from bench.peers.rows import LIGHTWELL, MACHINE, Demand, Row, lower_is_better
from lightwell.units import format_seconds


class Verdict(StrEnum):
    REACHED = "reached"
    SHORT = "SHORT"
    NOT_MEASURED = "not measured"
    NONE = ""  # nothing was demanded


@dataclass(frozen=True)
class Spread:
    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread | None":
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Line:
    """One line of the table. ``ratio``: the ratio of the medians, and the range of the rounds' own ratios."""

    row: Row
    demand: Demand
    verdict: Verdict
    ours: Spread | None = None
    against: str = ""
    theirs: Spread | None = None
    ratio: Spread | None = None
    our_share: float | None = None  # of the machine's limit for this work
    their_share: float | None = None
    reason: str = ""


def judge(row: Row, demand: Demand, results: Results) -> Line:
    """The line of one demand. It is not measured where anyone whom it names was not."""
    ours = results.series(row.name, demand.subject, demand.metric)
    names = (demand.subject, *demand.against)
    absent = [name for name in names if not results.series(row.name, name, demand.metric)]
    reason = "; ".join(f"{name}: {results.missing.get((row.name, name), 'left out of this run')}" for name in absent)
    rivals = {name: results.series(row.name, name, demand.metric) for name in demand.against if name not in absent}
    best = _best(rivals, demand.metric)
    theirs = rivals.get(best, {})
    ratio = _ratio(ours, theirs, demand.metric)
    verdict = _verdict(demand, Spread.of(list(ours.values())), ratio, complete=not absent)
    return Line(
        row,
        demand,
        verdict,
        ours=Spread.of(list(ours.values())),
        against=best or ", ".join(demand.against),
        theirs=Spread.of(list(theirs.values())),
        ratio=ratio,
        our_share=_share(row, demand.metric, ours, results),
        their_share=None if best == MACHINE else _share(row, demand.metric, theirs, results),
        reason=reason,
    )


def _verdict(demand: Demand, ours: Spread | None, ratio: Spread | None, *, complete: bool) -> Verdict:
    """Behind one of the rivals that were measured is behind the best of them, whoever is missing."""
    if demand.at_least is not None and ratio is not None and ratio.median < demand.at_least:
        return Verdict.SHORT
    if demand.at_most is not None and ours is not None and ours.median > demand.at_most:
        return Verdict.SHORT
    if demand.at_least is None and demand.at_most is None:
        return Verdict.NONE
    return Verdict.REACHED if complete else Verdict.NOT_MEASURED


def _best(rivals: dict[str, dict[int, float]], metric: str) -> str:
    medians = {name: statistics.median(series.values()) for name, series in rivals.items()}
    if not medians:
        return ""
    return (min if lower_is_better(metric) else max)(medians, key=lambda name: medians[name])


def _ratio(ours: dict[int, float], theirs: dict[int, float], metric: str) -> Spread | None:
    """By how much ours is better: of the medians, with the range over the rounds that measured both."""
    if not ours or not theirs:
        return None

    def better(a: float, b: float) -> float:
        return b / a if lower_is_better(metric) else a / b

    rounds = [better(ours[number], theirs[number]) for number in ours.keys() & theirs.keys()]
    median = better(statistics.median(ours.values()), statistics.median(theirs.values()))
    return Spread(median, min(rounds, default=median), max(rounds, default=median))


def _share(row: Row, metric: str, series: dict[int, float], results: Results) -> float | None:
    limit = results.series(row.name, MACHINE, metric)
    if not limit or not series:
        return None
    return statistics.median(series.values()) / statistics.median(limit.values())


def lines(rows: list[Row], results: Results) -> Iterator[Line]:
    """Every demand, then whoever else was measured on the same metrics, for information."""
    for row in rows:
        demands = list(row.demands)
        named = {(demand.metric, demand.against) for demand in demands}
        for metric in dict.fromkeys(demand.metric for demand in demands):
            for subject in row.subjects:
                demand = Demand(metric, (subject,))
                if (metric, (subject,)) not in named and results.series(row.name, subject, metric):
                    demands.append(demand)
        own = {demand.subject for demand in row.demands}
        yield from (judge(row, demand, results) for demand in demands if demand.against != tuple(own))


def exit_code(table: list[Line], *, allow_missing: bool) -> int:
    """1 where a row falls short, or was not measured unless that is allowed."""
    verdicts = {line.verdict for line in table}
    return int(Verdict.SHORT in verdicts or (Verdict.NOT_MEASURED in verdicts and not allow_missing))


_HEADER = ("row", "figure", "ours", "against", "theirs", "ratio", "demanded", "verdict", "share of limit")
_FIGURES = {
    "tokens_per_second": "tokens/s",
    "product_operations_per_second": "Gops/s",
    "ttft_p50_seconds": "TTFT p50",
    "ttft_p99_seconds": "TTFT p99",
    "first_token_seconds": "first token",
    "resident_bytes": "resident",
    "growth": "growth",
}


def render(table: list[Line], results: Results) -> str:
    """The table, what each row measures, and why anything is missing."""
    cells = [_HEADER, *(_cells(line) for line in table)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    text += ["", *(f"{name}: {value}" for name, value in results.facts.items()), ""]
    text += [f"{row.name}: {row.says}" for row in dict.fromkeys(line.row for line in table)]
    reasons = {(line.row.name, line.reason): None for line in table if line.reason}
    text += ["", *(f"not measured in {row}: {reason}" for row, reason in reasons)] if reasons else []
    return "\n".join(text)


def _cells(line: Line) -> tuple[str, ...]:
    demand = line.demand
    ours = _spread(line.ours, demand.metric)
    shares = [share for share in (line.our_share, line.their_share) if share is not None]
    return (
        line.row.name,
        _FIGURES[demand.metric],
        ours if demand.subject == LIGHTWELL else f"{ours} ({demand.subject})",
        line.against,
        _spread(line.theirs, demand.metric),
        _ratio_text(line.ratio),
        _demanded(demand),
        line.verdict,
        " / ".join(f"{share:.0%}" for share in shares),
    )


def _demanded(demand: Demand) -> str:
    if demand.at_least is not None:
        return f"at least {demand.at_least:g}"
    return f"at most {_number(demand.at_most, demand.metric)}" if demand.at_most is not None else ""


def _ratio_text(ratio: Spread | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"


def _spread(spread: Spread | None, metric: str) -> str:
    if spread is None:
        return "-"
    median, lowest, highest = (_number(x, metric) for x in (spread.median, spread.lowest, spread.highest))
    return median if spread.lowest == spread.highest else f"{median} ({lowest} to {highest})"


def _number(value: float, metric: str) -> str:
    if metric.endswith("_bytes"):
        return f"{value / 1e6:.0f} MB"
    if metric.startswith("product_operations"):
        return f"{value / 1e9:.0f}"
    if metric.endswith("_per_second"):
        return f"{value:.0f}"
    return format_seconds(value) if metric.endswith("_seconds") else f"{value:.3f}"
