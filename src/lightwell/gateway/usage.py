"""A row of the ledger: one admitted request, however it ended, with the tokens that the engine really made for it."""

from typing import Literal, TypeAlias

import msgspec

from lightwell.units import Picodollars, Seconds, Tokens

Outcome: TypeAlias = Literal["ok", "aborted", "failed"]
GROUPS = ("day", "key", "user", "team", "model")  # what usage can be summed by


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """``output_tokens`` are paid for: those of the answer, or where it was broken off those made until then.
    ``produced_tokens`` are what the engine made: a stop string is often seen a token late. Prices are by the token."""

    id: str  # the answer's
    at: Seconds  # since 1970, when it was admitted
    key: str
    user: str
    team: str
    tenant: str
    model: str
    api: str
    batch: bool
    outcome: Outcome
    prompt_tokens: Tokens
    cached_tokens: Tokens
    output_tokens: Tokens
    produced_tokens: Tokens
    seconds: Seconds
    first_token_seconds: Seconds | None
    input_price: Picodollars = 0
    cached_price: Picodollars = 0
    output_price: Picodollars = 0
    cost: Picodollars = 0


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of several requests. What they were not grouped by is empty."""

    day: str = ""  # UTC
    key: str = ""
    user: str = ""
    team: str = ""
    model: str = ""
    requests: int
    failed: int
    prompt_tokens: Tokens
    cached_tokens: Tokens
    output_tokens: Tokens
    cost: Picodollars
