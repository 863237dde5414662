"""/v1/usage, /v1/admin/usage and /v1/admin/prices: what was used, and what it costs."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.parameters import read_body
from lightwell.gateway.prices import Price, per_million, per_token
from lightwell.gateway.reply import json_response
from lightwell.gateway.usage import GROUPS, Sum
from lightwell.units import PICODOLLARS, Seconds

_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class _Sheet(msgspec.Struct):
    """Dollars for a million tokens. Cached input costs what other input does, where nothing is said."""

    input: _Dollars
    output: _Dollars
    cached_input: _Dollars | None = None
    batch_discount: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5


def usage_routes(gateway: Gateway) -> list[Route]:
    async def own(request: Request) -> Response:
        return await _sums(gateway, request, caller_of(request).tenant)

    async def all_usage(request: Request) -> Response:
        caller_of(request).check_admin()
        return await _sums(gateway, request, None)

    async def prices(request: Request) -> Response:
        caller_of(request).check_admin()
        sheet = await (await gateway.store.database()).prices.all()
        return json_response({"object": "list", "data": [described(model, sheet[model]) for model in sorted(sheet)]})

    async def put(request: Request) -> Response:
        caller_of(request).check_admin()
        body, warning = read_body(await request.body(), _Sheet)
        price = price_of(body.input, body.cached_input, body.output, body.batch_discount)
        model = request.path_params["model"]
        await (await gateway.store.database()).prices.put(model, price)
        gateway.prices.forget()
        return json_response(described(model, price), warning)

    async def delete(request: Request) -> Response:
        caller_of(request).check_admin()
        model = request.path_params["model"]
        if not await (await gateway.store.database()).prices.delete(model):
            raise NotFound(f"There is no price for {model!r}.")
        gateway.prices.forget()
        return json_response({"object": "price.deleted", "model": model, "deleted": True})

    one = "/v1/admin/prices/{model:path}"
    return [
        Route("/v1/usage", own),
        Route("/v1/admin/usage", all_usage),
        Route("/v1/admin/prices", prices),
        Route(one, put, methods=["PUT"]),
        Route(one, delete, methods=["DELETE"]),
    ]


def price_of(input: float, cached_input: float | None, output: float, batch_discount: float) -> Price:
    """From dollars for a million tokens."""
    cached = input if cached_input is None else cached_input
    return Price(per_token(input), per_token(cached), per_token(output), batch_discount)


def described(model: str, price: Price) -> dict[str, Any]:
    dollars = {name: per_million(getattr(price, name)) for name in ("input", "cached_input", "output")}
    return {"object": "price", "model": model, **dollars, "batch_discount": price.batch_discount}


def described_sum(row: Sum, by: tuple[str, ...]) -> dict[str, Any]:
    facts = msgspec.structs.asdict(row)
    shown = {name: facts[name] for name in by}
    counts = {name: value for name, value in facts.items() if name not in GROUPS and name != "cost"}
    return shown | counts | {"cost_dollars": row.cost / PICODOLLARS}


def checked_groups(text: str) -> tuple[str, ...]:
    """Raises InvalidRequest."""
    by = tuple(filter(None, text.split(",")))
    if unknown := [name for name in by if name not in GROUPS]:
        raise InvalidRequest(
            f"Usage cannot be grouped by {unknown[0]!r}: give some of {', '.join(GROUPS)}.", param="by"
        )
    return by


def checked_day(text: str, param: str) -> Seconds:
    """The beginning of a day, as seconds since 1970. Raises InvalidRequest."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InvalidRequest(f"{param!r} is {text[:20]!r}: give a day as 2026-01-31.", param=param) from None


async def _sums(gateway: Gateway, request: Request, tenant: str | None) -> Response:
    query = request.query_params
    by = checked_groups(query.get("by", "day,model"))
    since = checked_day(query["since"], "since") if "since" in query else 0.0
    until = checked_day(query["until"], "until") if "until" in query else None
    await gateway.ledger.flush()
    rows = await (await gateway.store.database()).usage.sums(by, since=since, until=until, tenant=tenant)
    return json_response({"object": "list", "data": [described_sum(row, by) for row in rows]})
