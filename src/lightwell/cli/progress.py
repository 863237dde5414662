"""A bar on the terminal for commands that take long; nothing where standard error is not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float, str], None]  # how much more is done, and what to say beside the bar


@contextmanager
def progress(label: str, total: float) -> Iterator[Advance]:
    if not sys.stderr.isatty():
        yield lambda amount, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, note="")
        yield lambda amount, note: bar.update(task, advance=amount, note=note)
