"""Tables on standard output, whole even where that is not a terminal."""

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
