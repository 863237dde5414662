"""Prices: what a model's tokens cost, in whole picodollars for each, so that sums are exact."""

import time
from typing import TYPE_CHECKING

import msgspec

from lightwell.units import PICODOLLARS, Picodollars, Seconds, Tokens

if TYPE_CHECKING:
    from lightwell.gateway.store import Store

_FRESH_SECONDS: Seconds = 1.0  # how soon a change made by another process is seen
_MILLION: Tokens = 10**6


class Price(msgspec.Struct, frozen=True):
    """For each token. ``batch_discount``: the share that requests of batches are cheaper by."""

    input: Picodollars
    cached_input: Picodollars
    output: Picodollars
    batch_discount: float = 0.5

    def cost(self, prompt: Tokens, cached: Tokens, output: Tokens, *, batch: bool = False) -> Picodollars:
        full = (prompt - cached) * self.input + cached * self.cached_input + output * self.output
        return round(full * (1 - self.batch_discount)) if batch else full


def per_token(dollars_per_million: float) -> Picodollars:
    return round(dollars_per_million * PICODOLLARS / _MILLION)


def per_million(price: Picodollars) -> float:
    """In dollars."""
    return price * _MILLION / PICODOLLARS


def dollars_per_million(dollars_per_hour: float, tokens_per_second: float, utilization: float = 1.0) -> float:
    """What a million tokens have to cost for the machine to earn its hour, if it works that share of the time."""
    return dollars_per_hour / (3600 * tokens_per_second * utilization) * _MILLION


class Prices:
    """A copy of the stored sheet, at most a second old."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._sheet: dict[str, Price] = {}
        self._read_at = -_FRESH_SECONDS

    async def of(self, model: str) -> Price | None:
        """None where it has no price: it is free, and no budget counts it."""
        if self._store.nothing_is_set():
            return None
        if time.monotonic() - self._read_at >= _FRESH_SECONDS:
            self._sheet = await (await self._store.database()).prices.all()
            self._read_at = time.monotonic()
        return self._sheet.get(model)

    def forget(self) -> None:
        self._read_at = -_FRESH_SECONDS
