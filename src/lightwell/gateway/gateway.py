"""Gateway: what every handler needs, whichever model it is for. Made once, and passed to ``create_app``."""

import asyncio
from dataclasses import dataclass, field

from lightwell.errors import ModelNotFound
from lightwell.gateway.authenticate import Access
from lightwell.gateway.caller import Caller
from lightwell.gateway.counters import Counters, MemoryCounters
from lightwell.gateway.drain import Drain
from lightwell.gateway.fair_queue import FairQueue
from lightwell.gateway.grouping import Grouping
from lightwell.gateway.keys import KeyRing
from lightwell.gateway.ledger import Ledger
from lightwell.gateway.limits import LimitStage, Rules
from lightwell.gateway.prices import Sheet
from lightwell.gateway.served import ServedModel
from lightwell.gateway.snapshot import Snapshot
from lightwell.gateway.stages import Stage
from lightwell.gateway.store import Store
from lightwell.gateway.summaries import Summaries
from lightwell.units import Seconds

_MOST_RUNNING, _MOST_WAITING = 80, 1000  # by default
_STALLED_AFTER_SECONDS = 30.0  # far longer than any step should take


@dataclass
class Gateway:
    """``stages`` stand around every generation, the first outermost."""

    models: list[ServedModel]
    store: Store
    stages: list[Stage] = field(default_factory=list)
    stalled_after: Seconds = _STALLED_AFTER_SECONDS
    access: Access = field(default_factory=Access)
    counters: Counters = field(default_factory=MemoryCounters)
    line: FairQueue = field(default_factory=lambda: FairQueue(_MOST_RUNNING, _MOST_WAITING))
    grouping: Grouping = field(default_factory=Grouping)
    drain: Drain = field(default_factory=Drain)
    batch_work: asyncio.Event = field(default_factory=asyncio.Event)  # set where there may be some
    summaries: Summaries = field(default_factory=Summaries)
    instructions: Snapshot[dict[str, str]] = field(init=False)
    keys: KeyRing = field(init=False)
    limits: Snapshot[Rules] = field(init=False)
    prices: Snapshot[Sheet] = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.instructions = Snapshot(self.store, lambda database: database.instructions.all(), {})
        self.keys = KeyRing(self.store)
        self.prices = Snapshot(self.store, lambda database: database.prices.all(), {})
        self.ledger = Ledger(self.store)
        self.limits = Snapshot(self.store, lambda database: database.limits.all(), {})
        self.stages += [LimitStage(self.limits, self.counters, self.store), self.line, self.ledger]

    def find_model(self, name: str | None, caller: Caller) -> ServedModel:
        """The model of that name; none asked for means the first. Raises ModelNotFound, also for one that the caller
        may not use: which models exist is not everybody's to know."""
        allowed = [model for model in self.models if any(map(caller.may_use, model.names))]
        for model in allowed:
            if name is None or (name in model.names and caller.may_use(name)):
                return model
        served = ", ".join(each for model in allowed for each in model.names if caller.may_use(each))
        raise ModelNotFound(f"The model {name!r} is not served here; this server has: {served}.", param="model")

    def admit(self, model: ServedModel) -> None:
        """Raises Overloaded where nothing new is generated: while draining, or before the engine is ready."""
        self.drain.admit()
        model.check_ready()
