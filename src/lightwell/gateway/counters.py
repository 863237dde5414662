"""Counters: reserved all or none, and given back. In memory for one gateway, in Redis for several that share them."""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from lightwell.errors import Overloaded, StartupError
from lightwell.units import Seconds

Entry: TypeAlias = tuple[str, int, int, Seconds]  # counter, what is asked of it, its limit, when it ends
_CONCURRENT = "concurrent/"
_LEASE_SECONDS: Seconds = 30.0  # after which a request of a dead gateway no longer counts as running
_KEPT_SECONDS = 7200  # past a counter's end: a request that began in it gives back later

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reservation:
    """``totals`` of each counter, with what was reserved; where some refused, without. ``refused``: their places."""

    id: str
    totals: list[int]
    refused: list[int]


class Counters(Protocol):
    async def reserve(self, entries: Sequence[Entry], now: Seconds) -> Reservation:
        """Add to all of them, or where one would exceed its limit to none."""
        ...

    async def give_back(self, reservation: Reservation, unused: Sequence[tuple[str, int]], now: Seconds) -> None:
        """Take off; a negative number adds, also past the limit: what was used was used."""
        ...

    async def has(self, counter: str, now: Seconds) -> bool: ...

    async def seed(self, counter: str, value: int, end: Seconds, now: Seconds) -> None:
        """Begin at a value, where it has not begun."""
        ...


class MemoryCounters:
    def __init__(self) -> None:
        self._values: dict[str, tuple[int, Seconds]] = {}
        self._swept_at: Seconds = 0.0

    async def reserve(self, entries: Sequence[Entry], now: Seconds) -> Reservation:
        self._sweep(now)
        taken = [self._values.get(counter, (0, 0.0))[0] for counter, *_ in entries]
        asked = zip(entries, taken, strict=True)
        refused = [place for place, ((_, amount, limit, _), total) in enumerate(asked) if total + amount > limit]
        if refused:
            return Reservation("", taken, refused)
        for counter, amount, _, end in entries:
            self._values[counter] = (self._values.get(counter, (0, 0.0))[0] + amount, end)
        return Reservation("", [self._values[counter][0] for counter, *_ in entries], [])

    async def give_back(self, reservation: Reservation, unused: Sequence[tuple[str, int]], now: Seconds) -> None:
        for counter, amount in unused:
            if counter in self._values:
                value, end = self._values[counter]
                self._values[counter] = (value - amount, end)

    async def has(self, counter: str, now: Seconds) -> bool:
        return counter in self._values

    async def seed(self, counter: str, value: int, end: Seconds, now: Seconds) -> None:
        self._values.setdefault(counter, (value, end))

    def _sweep(self, now: Seconds) -> None:
        """Forget what has long ended, now and then; a count of running requests has no end."""
        if now - self._swept_at < 60:
            return
        self._swept_at = now
        self._values = {
            counter: (value, end)
            for counter, (value, end) in self._values.items()
            if end + _KEPT_SECONDS > now or (counter.startswith(_CONCURRENT) and value)
        }


# Running requests are leases in a sorted set, so that those of a gateway that was killed end by themselves. Everything
# else is a number with an end. KEYS: the counters. ARGV: lease, now, its end, then amount, limit and end of each.
_RESERVE = """
local totals = {}
local refused = {}
for i, key in ipairs(KEYS) do
  local amount, limit = tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  if string.find(key, 'concurrent/', 1, true) then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[2])
    totals[i] = redis.call('ZCARD', key)
  else
    totals[i] = tonumber(redis.call('GET', key) or '0')
  end
  if totals[i] + amount > limit then table.insert(refused, i - 1) end
end
if #refused == 0 then
  for i, key in ipairs(KEYS) do
    if string.find(key, 'concurrent/', 1, true) then
      redis.call('ZADD', key, ARGV[3], ARGV[1])
      redis.call('EXPIRE', key, 120)
      totals[i] = totals[i] + 1
    else
      totals[i] = redis.call('INCRBY', key, ARGV[3 * i + 1])
      redis.call('EXPIREAT', key, math.ceil(tonumber(ARGV[3 * i + 3])))
    end
  end
end
return {refused, totals}
"""
_GIVE_BACK = """
for i, key in ipairs(KEYS) do
  if string.find(key, 'concurrent/', 1, true) then
    redis.call('ZREM', key, ARGV[1])
  elseif redis.call('EXISTS', key) == 1 then
    redis.call('DECRBY', key, ARGV[i + 1])
  end
end
"""
_RENEW = """
for i, key in ipairs(KEYS) do
  if redis.call('ZSCORE', key, ARGV[2 * i]) then redis.call('ZADD', key, ARGV[1], ARGV[2 * i]) end
  redis.call('EXPIRE', key, 120)
end
"""


class RedisCounters:
    """Where Redis is away nothing is let in: what nobody counts has no limit. Raises Overloaded then."""

    def __init__(self, url: str, prefix: str = "lightwell/") -> None:
        """Raises StartupError where the address is none, or the client is not installed."""
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise StartupError("--redis-url needs the Redis client: pip install 'lightwell[redis]'.") from None
        try:
            self._redis: Any = Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=5.0)
        except ValueError as error:
            raise StartupError(f"--redis-url {url!r} is no address: {error}") from None
        self._prefix = prefix
        self._reserve, self._give_back, self._renew = map(self._redis.register_script, (_RESERVE, _GIVE_BACK, _RENEW))
        self._leases: dict[str, list[str]] = {}

    async def reserve(self, entries: Sequence[Entry], now: Seconds) -> Reservation:
        lease = uuid.uuid4().hex
        keys = [self._prefix + counter for counter, *_ in entries]
        arguments: list[str | float] = [lease, now, now + _LEASE_SECONDS]
        for _, amount, limit, end in entries:
            arguments += [amount, limit, end + _KEPT_SECONDS]
        refused, totals = await self._asked(self._reserve(keys, arguments))
        if not refused and (running := [key for key in keys if _CONCURRENT in key]):
            self._leases[lease] = running
        return Reservation(lease, totals, refused)

    async def give_back(self, reservation: Reservation, unused: Sequence[tuple[str, int]], now: Seconds) -> None:
        self._leases.pop(reservation.id, None)
        keys = [self._prefix + counter for counter, _ in unused]
        try:
            await self._asked(self._give_back(keys, [reservation.id, *(amount for _, amount in unused)]))
        except Overloaded:
            log.error("Redis is away: %d counters keep what a request did not use until they end", len(keys))

    async def has(self, counter: str, now: Seconds) -> bool:
        return bool(await self._asked(self._redis.exists(self._prefix + counter)))

    async def seed(self, counter: str, value: int, end: Seconds, now: Seconds) -> None:
        life = max(int(end + _KEPT_SECONDS - now), 1)
        await self._asked(self._redis.set(self._prefix + counter, value, nx=True, ex=life))

    async def keep_leases(self, now: Seconds) -> None:
        """Say that the requests of this process still run; to be said some times within a lease."""
        pairs = [(key, lease) for lease, keys in self._leases.items() for key in keys]
        if pairs:
            arguments: list[Any] = [now + _LEASE_SECONDS]
            for _, lease in pairs:
                arguments += [lease, ""]
            await self._asked(self._renew([key for key, _ in pairs], arguments))

    async def run(self, now: Any) -> None:
        """Keep the leases, until cancelled."""
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 3)
            try:
                await self.keep_leases(now())
            except Overloaded:
                log.warning("Redis is away: running requests cannot be counted")

    async def close(self) -> None:
        await self._redis.aclose()

    async def _asked(self, work: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await work
        except (RedisError, OSError) as error:
            raise Overloaded(f"The limits cannot be checked, because Redis is away: {error}") from None
