"""The order of things: rows that share a setting share their subjects' processes, and within a round everybody takes
a turn, so that a change of the machine's speed meets all of them. While one is measured the others are frozen."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from zlib import crc32

from bench.peers.records import Recorder
from bench.peers.rows import LIGHTWELL, Row
from bench.peers.sessions import Session
from bench.peers.workloads import Setting, Unavailable

Opener = Callable[[str, Setting], Session]  # raises Unavailable


def run(rows: list[Row], chosen: frozenset[str], rounds: int, opener: Opener, recorder: Recorder) -> None:
    """Measure every row ``rounds`` times for Lightwell and those of its subjects that are ``chosen``."""
    for setting, group in groupby(rows, key=lambda row: row.setting):
        with ExitStack() as stack:
            sessions = Sessions(setting, opener, stack)
            for row in group:
                _run_row(row, chosen, rounds, sessions, recorder)


class Sessions:
    """The subjects of one setting, each opened when it is first asked for and closed by ``stack``; what could not be
    opened is not tried again."""

    def __init__(self, setting: Setting, opener: Opener, stack: ExitStack) -> None:
        self.setting = setting
        self._opener = opener
        self._stack = stack
        self._open: dict[str, Session] = {}
        self._failed: dict[str, str] = {}

    def get(self, subject: str) -> Session:
        if subject in self._failed:
            raise Unavailable(self._failed[subject])
        if subject not in self._open:
            try:
                session = self._opener(subject, self.setting)
            except Unavailable as error:
                self._failed[subject] = str(error)
                raise
            self._stack.callback(session.close)
            self._open[subject] = session
        return self._open[subject]

    @contextmanager
    def alone(self, subject: str) -> Iterator[Session]:
        """The subject, with all others frozen."""
        session = self.get(subject)
        others = [other for name, other in self._open.items() if name != subject]
        for other in others:
            other.freeze()
        try:
            yield session
        finally:
            for other in others:
                other.thaw()


def _seed(row: Row, number: int) -> int:
    """Rows share their subjects' processes: what one has asked must not be found in a prefix cache by the next."""
    return 1000 * (1 + crc32(row.name.encode())) + number


def _run_row(row: Row, chosen: frozenset[str], rounds: int, sessions: Sessions, recorder: Recorder) -> None:
    recorder.row(row.name)
    subjects = [LIGHTWELL, *(subject for subject in row.subjects if subject in chosen)]
    first = 1 if row.once else 0  # round 0 warms up and is not written down
    for number in range(first, 2 if row.once else rounds + 1):
        for subject in list(subjects):
            try:
                with sessions.alone(subject) as session:
                    metrics = session.measure(row.workload, seed=_seed(row, number))
            except Unavailable as error:
                subjects.remove(subject)
                recorder.missing(row.name, subject, str(error))
                _say(f"{row.name}, {subject}: {error}")
                continue
            if number:
                recorder.value(row.name, subject, number, metrics)
            told = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            _say(f"{row.name}, {f'round {number}' if number else 'warm-up'}, {subject}: {told}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
