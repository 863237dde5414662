"""Clocks: the engine is given one, so that tests and simulations can give it another."""

import time
from collections.abc import Callable
from typing import TypeAlias

from lightwell.units import Seconds

Clock: TypeAlias = Callable[[], Seconds]

wall_clock: Clock = time.monotonic


class VirtualClock:
    """A clock that stands still until it is set."""

    def __init__(self, now: Seconds = 0.0) -> None:
        self.now = now

    def __call__(self) -> Seconds:
        return self.now
