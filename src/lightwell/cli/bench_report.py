"""What every ``lightwell bench`` command prints: the runs of one measurement, as a line for people or as JSON."""

import json
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Runs:
    """The values of one measurement, run by run; the median is what counts, the range says how far to trust it."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def lowest(self) -> float:
        return min(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)


def show(label: str, runs: Runs, unit: str, *, scale: float = 1.0, digits: int = 0) -> str:
    """``label: median unit (from lowest to highest, n runs)``, each value divided by ``scale``."""
    median, low, high = (f"{value / scale:.{digits}f}" for value in (runs.median, runs.lowest, runs.highest))
    return f"{label}: {median} {unit} (from {low} to {high}, {len(runs.values)} runs)"


def as_json(measure: str, runs: Runs, unit: str, **facts: object) -> str:
    """One JSON object on a line: what was measured, its unit, the facts that tell it from others, and all runs."""
    summary = {"median": runs.median, "lowest": runs.lowest, "highest": runs.highest, "runs": runs.values}
    return json.dumps({"measure": measure, "unit": unit, **facts, **summary})
