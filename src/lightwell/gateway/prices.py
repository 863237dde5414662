"""Prices: what a model's tokens cost, in whole picodollars for each, so that sums are exact."""

from typing import TypeAlias

import msgspec

from lightwell.units import PICODOLLARS, Picodollars, Tokens

Sheet: TypeAlias = dict[str, "Price"]  # by model; one that is not there costs nothing
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
