"""Ledger: what the client keeps of every open request, so that it can go on in another engine's process.

Bookkeeping only, without processes or I/O: events of engines come in, and go out as if one engine had done it all.
It also finds the request that kills engines: see ``due`` and ``died``.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from lightwell.engine.request import Request
from lightwell.errors import InvalidRequest
from lightwell.events import Admitted, Event, Finished, Preempted, PromptScored, Queued, Rejected, Reused, Sampled
from lightwell.host.messages import Abort
from lightwell.units import Seconds, Tokens

_SUSPECT = 2  # engines that died around a request without a token for it in between: then it is tried alone
_CONVICTED = 2  # of these, engines that had nothing else to do: then it is not tried again


@dataclass(eq=False, slots=True)
class _Open:
    """``answer`` are the tokens that its stream has got, ``scored`` the prompt's tokens up to which it has got scores.
    ``cached_tokens`` are those of its first admission, as long as it is ``fresh``: never preempted, in no later engine.
    ``deaths`` counts the engines that died around it since its last token, ``alone`` those that had nothing else."""

    request: Request
    queued_at: Seconds
    answer: list[int] = field(default_factory=list)
    scored: Tokens = 1  # the first token follows nothing
    cached_tokens: Tokens = 0
    admitted: bool = False
    fresh: bool = True
    inside: bool = False  # the engine that lives now has it
    left: bool = False  # its stream has ended, and the engine was told so
    deaths: int = 0
    alone: int = 0

    def continued(self) -> Request:
        """The request from where it stands. Scores of the prompt are not asked for again when all are there."""
        prompt_logprobs = self.request.prompt_logprobs
        if self.scored >= len(self.request.tokens) and self.request.max_tokens > 0:
            prompt_logprobs = None
        return replace(self.request, answer=[*self.request.answer, *self.answer], prompt_logprobs=prompt_logprobs)

    def ended(self, reason: str, now: Seconds) -> Finished:
        """The end of a request that no engine will report."""
        output = len(self.request.answer) + len(self.answer)
        return Finished(now, self.request.id, reason, len(self.request.tokens), self.cached_tokens, output)


class Aftermath(NamedTuple):
    """What a death leaves. ``fruitful``: the engine had brought a token or an end of some request."""

    ended: list[Finished]
    convicted: list[str]
    fruitful: bool


class Ledger:
    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}  # in the order of their arrival
        self._held: dict[str, _Open] = {}  # those that the engine does not have, in the same order
        self._fruitful = False

    @property
    def inside(self) -> int:
        """How many requests the engine has."""
        return len(self._open) - len(self._held)

    @property
    def held(self) -> int:
        """How many wait for the engine to be there, or for others to be tried alone."""
        return len(self._held)

    def add(self, request: Request, now: Seconds) -> Queued:
        """Take a request in. It waits from now on, whether there is an engine or not.

        Raises InvalidRequest for the id of an open one.
        """
        if request.id in self._open:
            raise InvalidRequest(f"request {request.id!r} is already open: every request needs its own id")
        self._open[request.id] = self._held[request.id] = _Open(request, now)
        return Queued(now, request.id, len(request.tokens), request.max_tokens, request.priority)

    def due(self) -> list[Request]:
        """The requests to give to the engine now.

        All that are held, unless some are suspects: around those two engines died without a token for them in between.
        One suspect after the other is given alone; a token clears it, and the next one joins it. So when the engine
        dies again, the one that had not got its token yet has most deaths, and comes first in the next engine: alone.
        """
        if not self._held:
            return []
        suspects = [entry for entry in self._open.values() if entry.deaths >= _SUSPECT and not entry.left]
        if any(entry.inside for entry in suspects):
            return []
        due = [max(suspects, key=lambda entry: entry.deaths)] if suspects else list(self._held.values())
        for entry in due:
            entry.inside = True
            del self._held[entry.request.id]
        return [entry.continued() for entry in due]

    def leave(self, request_id: str, now: Seconds) -> Abort | Finished | None:
        """A stream has ended early: returns what the engine is to be told, or readers where it does not have the
        request; None where it is over."""
        entry = self._open.get(request_id)
        if entry is None:
            return None
        if not entry.inside:
            return self._close(entry, "abort", now)
        entry.left = True
        return Abort(request_id)

    def refused(self, request_id: str, now: Seconds) -> Finished:
        """The engine did not take it."""
        return self._close(self._open[request_id], "error", now)

    def died(self, now: Seconds) -> Aftermath:
        """The engine has died. What it had is held again, but for those whose streams have left.

        A request is convicted where two engines died around it without a token for it in between, and both had nothing
        else to do.
        """
        inside = [entry for entry in self._open.values() if entry.inside]
        for entry in inside:
            entry.deaths += 1
            entry.alone += len(inside) == 1
            entry.inside = entry.fresh = False
        convicted = [entry for entry in inside if entry.alone >= _CONVICTED and not entry.left]
        ended = [self._close(entry, "abort", now) for entry in inside if entry.left]
        ended += [self._close(entry, "error", now) for entry in convicted]
        self._held = dict(self._open)
        fruitful, self._fruitful = self._fruitful, False
        return Aftermath(ended, [entry.request.id for entry in convicted], fruitful)

    def give_up(self, now: Seconds) -> list[Finished]:
        """Nothing goes on any more."""
        return [self._close(entry, "error", now) for entry in list(self._open.values())]

    def read(self, events: list[Event]) -> list[Event]:
        """An engine's events as they are to be seen: each thing once, with the counts of the whole answer."""
        return [seen for event in events if (seen := self._see(event)) is not None]

    def _see(self, event: Event) -> Event | None:
        entry = self._open.get(getattr(event, "request", ""))
        if entry is None:
            return event
        match event:
            case Sampled():
                entry.answer.append(event.token)
                entry.deaths = entry.alone = 0
                self._fruitful = True
            case Queued():
                return None  # said when it was taken in
            case Admitted():
                return _admitted(entry, event)
            case Reused() if entry.fresh:
                entry.cached_tokens += event.tokens
            case Preempted():
                entry.fresh = False
            case PromptScored():
                return _scored(entry, event)
            case Rejected():
                self._forget(entry)
            case Finished():
                self._forget(entry)
                self._fruitful |= event.reason != "abort"
                return event if entry.fresh else replace(event, cached_tokens=entry.cached_tokens)
        return event

    def _close(self, entry: _Open, reason: str, now: Seconds) -> Finished:
        self._forget(entry)
        return entry.ended(reason, now)

    def _forget(self, entry: _Open) -> None:
        del self._open[entry.request.id]
        self._held.pop(entry.request.id, None)


def _admitted(entry: _Open, event: Admitted) -> Admitted:
    """The first admission is the request's, after all of its waiting; a later one is a return, in whichever engine."""
    if entry.admitted:
        return replace(event, resumed=True)
    entry.admitted = entry.fresh = True
    entry.cached_tokens = event.cached_tokens
    return replace(event, waited=event.at - entry.queued_at)


def _scored(entry: _Open, event: PromptScored) -> PromptScored | None:
    """What is new of the prompt's scores."""
    new = event.scores[max(0, entry.scored - event.start) :]
    start, entry.scored = entry.scored, entry.scored + len(new)
    return replace(event, start=start, scores=new) if new else None
