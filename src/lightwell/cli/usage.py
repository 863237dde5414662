"""``lightwell usage`` and ``lightwell prices``: what was used, what it costs, and what it should cost."""

import csv
import sys
from typing import Any

import msgspec

from lightwell.cli.stored import with_database
from lightwell.cli.table import print_table
from lightwell.errors import NotFound
from lightwell.gateway.prices import dollars_per_million
from lightwell.gateway.usage_api import checked_day, checked_groups, described, described_sum, price_of

_MEASURED_BATCH, _MEASURED_CONTEXT, _MEASURED_TOKENS, _MEASURED_PROMPT = 16, 512, 32, 512


def usage(by: str, since: str | None, until: str | None, form: str) -> None:
    groups = checked_groups(by)
    begin = 0.0 if since is None else checked_day(since, "--since")
    end = None if until is None else checked_day(until, "--until")
    rows = with_database(lambda database: database.usage.sums(groups, since=begin, until=end))
    shown = [described_sum(row, groups) for row in rows]
    heading = list(shown[0]) if shown else [*groups, "requests", "cost_dollars"]
    match form:
        case "json":
            for row in shown:
                print(msgspec.json.encode(row).decode())
        case "csv":
            writer = csv.writer(sys.stdout)
            writer.writerow(heading)
            writer.writerows(row.values() for row in shown)
        case _:
            table = [[_cell(value) for value in row.values()] for row in shown]
            print_table([[name.upper().replace("_", " ") for name in heading], *table])


def _cell(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def set_price(model: str, input: float, output: float, cached_input: float | None, batch_discount: float) -> None:
    price = price_of(input, cached_input, output, batch_discount)
    with_database(lambda database: database.prices.put(model, price))
    _show({model: price})


def list_prices() -> None:
    _show(with_database(lambda database: database.prices.all()))


def clear_price(model: str) -> None:
    """Raises NotFound."""
    if not with_database(lambda database: database.prices.delete(model)):
        raise NotFound(f"There is no price for {model!r}.")
    print(f"{model} is free.")


def _show(sheet: dict[str, Any]) -> None:
    rows = [["MODEL", "INPUT $/M", "CACHED $/M", "OUTPUT $/M", "BATCH DISCOUNT"]]
    for model in sorted(sheet):
        facts = described(model, sheet[model])
        dollars = [f"{facts[name]:.6g}" for name in ("input", "cached_input", "output")]
        rows.append([model, *dollars, f"{facts['batch_discount']:.0%}"])
    print_table(rows)


def suggest(
    model: str,
    dollars_per_hour: float,
    utilization: float,
    prompt_rate: float | None,
    output_rate: float | None,
    threads: int | None,
) -> None:
    """Prices at which the machine earns its hour. What was not given as tokens per second is measured here."""
    if prompt_rate is None or output_rate is None:
        measured = _measured(model, threads)
        prompt_rate, output_rate = prompt_rate or measured[0], output_rate or measured[1]
    input = dollars_per_million(dollars_per_hour, prompt_rate, utilization)
    output = dollars_per_million(dollars_per_hour, output_rate, utilization)
    rates = f"reads {prompt_rate:,.0f} and writes {output_rate:,.0f} tokens/s"
    print(f"{model}: {rates}, at work {utilization:.0%} of the time")
    print(f"lightwell prices set {model} --input {input:.6g} --output {output:.6g}")


def _measured(model: str, threads: int | None) -> tuple[float, float]:
    """Tokens per second of reading a prompt, and of writing for 16 sequences at once."""
    from lightwell.cli.bench import decoding, load, prefilling
    from lightwell.host.memory import blocks_for

    blocks = _MEASURED_BATCH * blocks_for(_MEASURED_CONTEXT + _MEASURED_TOKENS)
    loaded = load(model, threads, max(blocks, blocks_for(_MEASURED_PROMPT)))
    prefill = prefilling(loaded, _MEASURED_PROMPT, _MEASURED_PROMPT)
    decode = decoding(loaded, _MEASURED_BATCH, _MEASURED_TOKENS, _MEASURED_CONTEXT)
    prefill()
    return _MEASURED_PROMPT / prefill(), _MEASURED_BATCH * _MEASURED_TOKENS / decode()
