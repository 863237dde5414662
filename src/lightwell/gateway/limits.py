"""Limits: how much a key, a team or a model may use. Checked before the engine sees a request, settled when it ends.

Each limit counts in a window of its own, a minute, a day or a month of UTC. What a request may use at most is reserved,
in all windows that it touches or in none, and given back as far as it was not used: to the window it was taken from.
"""

import asyncio
import calendar
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from lightwell.errors import InvalidRequest, QuotaExceeded, RateLimited
from lightwell.gateway.counters import Counters, Reservation
from lightwell.gateway.generate import Generation
from lightwell.gateway.snapshot import Snapshot
from lightwell.units import PICODOLLARS, Seconds, Tokens

if TYPE_CHECKING:
    from lightwell.gateway.store import Store

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Dollars = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Measure: TypeAlias = Literal["requests", "tokens", "concurrent", "dollars"]
Period: TypeAlias = Literal["minute", "day", "month", "now"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """None: no such limit. Tokens of a minute are those of prompts and answers together."""

    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrent_requests: _Count | None = None
    prompt_tokens: _Count | None = None  # of one request
    output_tokens: _Count | None = None  # of one request, all its answers together
    dollars_per_day: _Dollars | None = None
    dollars_per_month: _Dollars | None = None


Rules: TypeAlias = dict[str, Limits]  # by subject; "default" is for every key by itself


@dataclass(frozen=True)
class Window:
    """``name`` tells it from those before and after. Times are seconds since 1970."""

    name: str
    begin: Seconds
    end: Seconds


def window(period: Period, now: Seconds) -> Window:
    """The minute, day or month that this moment is in."""
    if period == "now":
        return Window("now", now, now + 1)
    if period == "minute":
        begin = now - now % 60
        return Window(f"minute{int(begin)}", begin, begin + 60)
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return Window(f"day{day:%Y%m%d}", day.timestamp(), day.timestamp() + 86400)
    first = day.replace(day=1)
    days = calendar.monthrange(day.year, day.month)[1]
    return Window(f"month{day:%Y%m}", first.timestamp(), first.timestamp() + days * 86400)


@dataclass(frozen=True)
class Claim:
    """What a request takes of one limit, at most. ``of`` is the limit; dollars are picodollars here."""

    subject: str
    measure: Measure
    window: Window
    amount: int
    of: int

    @property
    def counter(self) -> str:
        return f"{self.measure}/{self.window.name}/{self.subject}"


class LimitStage:
    """``now`` in seconds since 1970."""

    def __init__(
        self,
        rules: Snapshot[Rules],
        counters: Counters,
        store: "Store",
        now: Callable[[], Seconds] = time.time,
    ) -> None:
        self._rules, self._counters, self._store, self._now = rules, counters, store, now
        self._settling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def around(self, generation: Generation) -> AsyncIterator[None]:
        rules = await self._rules.rules()
        limits = applying(rules, generation) if rules else []
        if not limits:
            yield
            return
        prompt, output = most_tokens(generation)
        for subject, limit in limits:
            _check_size(subject, limit, prompt, output)
        claims = _claims(limits, prompt, output, generation, self._now())
        _check_possible(claims)
        reservation = await self._reserve(claims)
        generation.headers |= rate_headers(claims, reservation.totals, self._now())
        try:
            yield
        finally:
            # Beside the request, which may have been cancelled. Whoever was answered may ask again at once, also where
            # only one request may run; what it used is known a little later.
            self._beside(self._settle(reservation, claims, generation))
            await asyncio.shield(self._beside(self._end(reservation, claims)))

    def _beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _reserve(self, claims: Sequence[Claim]) -> Reservation:
        await self._seed([claim for claim in claims if claim.measure == "dollars"])
        entries = [(claim.counter, claim.amount, claim.of, claim.window.end) for claim in claims]
        reservation = await self._counters.reserve(entries, self._now())
        if reservation.refused:
            raise _refusal(claims, reservation, self._now())
        return reservation

    async def _seed(self, claims: Sequence[Claim]) -> None:
        """Money that was spent before a restart still counts: the ledger knows it."""
        for claim in claims:
            if not await self._counters.has(claim.counter, self._now()):
                usage = (await self._store.database()).usage
                spent = await usage.spent(claim.subject, claim.window.begin)
                await self._counters.seed(claim.counter, spent, claim.window.end, self._now())

    async def _end(self, reservation: Reservation, claims: Sequence[Claim]) -> None:
        """It does not run any more."""
        if running := [(claim.counter, claim.amount) for claim in claims if claim.measure == "concurrent"]:
            await self._counters.give_back(reservation, running, self._now())

    async def _settle(self, reservation: Reservation, claims: Sequence[Claim], generation: Generation) -> None:
        """To what the ledger's row says; one that was refused after this stage has none, and used nothing."""
        used = {"requests": 0, "tokens": 0, "dollars": 0}
        if generation.row is not None:
            row = await generation.row
            used = {"requests": 1, "tokens": row.prompt_tokens + row.output_tokens, "dollars": row.cost}
        unused = [(each.counter, each.amount - used[each.measure]) for each in claims if each.measure in used]
        if unused:
            await self._counters.give_back(reservation, unused, self._now())


def most_tokens(generation: Generation) -> tuple[Tokens, Tokens]:
    """Of its prompts, and what its answers may have at most."""
    requests = [answer.request for answer in generation.answers]
    prompt = sum(len(request.tokens) for request in requests if not request.fork_of)
    return prompt, sum(request.max_tokens for request in requests)


def applying(rules: Rules, generation: Generation) -> list[tuple[str, Limits]]:
    """The limits that a request is under. Whoever has no key is one by the user's name."""
    caller = generation.caller
    own = f"key:{caller.key or caller.user}"
    subjects = [own, f"model:{generation.served.names[0]}"] + ([f"team:{caller.team}"] if caller.team else [])
    found = [(subject, rules[subject]) for subject in subjects if subject in rules]
    return [*found, (own, rules["default"])] if "default" in rules and own not in rules else found


def _claims(
    limits: Sequence[tuple[str, Limits]],
    prompt: Tokens,
    output: Tokens,
    generation: Generation,
    now: Seconds,
) -> list[Claim]:
    price = generation.price
    cost = price.cost(prompt, 0, output, batch=generation.batch) if price else 0
    claims = []
    for subject, limit in limits:
        wanted: tuple[tuple[Measure, Period, int, float | None], ...] = (
            ("requests", "minute", 1, limit.requests_per_minute),
            ("tokens", "minute", prompt + output, limit.tokens_per_minute),
            ("concurrent", "now", 1, limit.concurrent_requests),
            ("dollars", "day", cost, _picodollars(limit.dollars_per_day)),
            ("dollars", "month", cost, _picodollars(limit.dollars_per_month)),
        )
        claims += [
            Claim(subject, measure, window(period, now), amount, int(most))
            for measure, period, amount, most in wanted
            if most is not None
        ]
    return claims


def _picodollars(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * PICODOLLARS)


def _check_size(subject: str, limit: Limits, prompt: Tokens, output: Tokens) -> None:
    """Raises InvalidRequest, with both numbers."""
    if limit.prompt_tokens is not None and prompt > limit.prompt_tokens:
        raise InvalidRequest(
            f"The prompt has {prompt} tokens, but {subject} may send at most {limit.prompt_tokens} in a request.",
            param="messages",
        )
    if limit.output_tokens is not None and output > limit.output_tokens:
        raise InvalidRequest(
            f"The answer may have {output} tokens, but {subject} may have at most {limit.output_tokens} in a request. "
            "Lower max_tokens.",
            param="max_tokens",
        )


def _check_possible(claims: Sequence[Claim]) -> None:
    """Raises InvalidRequest for what no waiting would let through."""
    for claim in claims:
        if claim.amount > claim.of:
            raise InvalidRequest(
                f"This request may take {_shown(claim.measure, claim.amount)}, but {claim.subject} has only "
                f"{_shown(claim.measure, claim.of)} in all. Shorten the prompt or lower max_tokens.",
                param="max_tokens",
            )


def _refusal(claims: Sequence[Claim], reservation: Reservation, now: Seconds) -> RateLimited:
    """Names the limit that refuses the longest: until it has an end the others matter little."""
    refusing = [(claims[place], reservation.totals[place]) for place in reservation.refused]
    claim, taken = max(refusing, key=lambda each: each[0].window.end)
    headers = rate_headers(claims, reservation.totals, now)
    wait = claim.window.end - now
    what = (
        f"Limit reached for {claim.subject}: {_shown(claim.measure, claim.of)}"
        f"{'' if claim.measure == 'concurrent' else f' in a {_period(claim)}'}, of which "
        f"{_shown(claim.measure, taken)} are taken; this request may take {_shown(claim.measure, claim.amount)}."
    )
    if claim.measure == "dollars":
        return QuotaExceeded(what, wait, headers)
    kind = "tokens" if claim.measure == "tokens" else "requests"
    return RateLimited(f"{what} Try again in {duration_text(wait)}.", kind, wait, headers)


def _period(claim: Claim) -> str:
    return claim.window.name.rstrip("0123456789")


def _shown(measure: Measure, amount: int) -> str:
    match measure:
        case "dollars":
            return f"${amount / PICODOLLARS:.6f}"
        case "concurrent":
            return f"{amount} requests at once"
        case _:
            return f"{amount} {measure}"


def rate_headers(claims: Sequence[Claim], totals: Sequence[int], now: Seconds) -> dict[str, str]:
    """OpenAI's, of the limit that is nearest to its end."""
    headers: dict[str, str] = {}
    left_of = [(claim.of - total, claim) for claim, total in zip(claims, totals, strict=True)]
    for measure in ("requests", "tokens"):
        mine = [pair for pair in left_of if pair[1].measure == measure]
        if mine:
            left, claim = min(mine, key=lambda pair: pair[0])
            headers |= {
                f"x-ratelimit-limit-{measure}": str(claim.of),
                f"x-ratelimit-remaining-{measure}": str(max(left, 0)),
                f"x-ratelimit-reset-{measure}": duration_text(claim.window.end - now),
            }
    return headers


def duration_text(duration: Seconds) -> str:
    """As OpenAI writes one: ``12ms``, ``1.5s``, ``6m0s``."""
    if duration < 1:
        return f"{duration * 1000:.0f}ms"
    minutes, seconds = divmod(duration, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text
