"""``lightwell usage`` and ``lightwell prices``."""

import asyncio
import csv
import io
import json

import pytest
from typer.testing import CliRunner

from lightwell.cli.main import app
from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.store import Store
from lightwell.gateway.usage import Usage
from lightwell.units import PICODOLLARS


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTWELL_STORE", str(tmp_path / "store.db"))
    return tmp_path / "store.db"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout


def used(day: int, key: str, output: int) -> Usage:
    return Usage(
        id=f"a{day}{key}",
        at=day * 86400 + 5.0,
        key=key,
        user="u",
        team="",
        tenant="user:u",
        model="m",
        api="chat",
        batch=False,
        outcome="ok",
        prompt_tokens=10,
        cached_tokens=2,
        output_tokens=output,
        produced_tokens=output,
        seconds=1.0,
        first_token_seconds=0.1,
        cost=output * PICODOLLARS,
    )


def fill(store) -> None:
    async def add() -> None:
        opened = Store(store)
        rows = [used(0, "k1", 1), used(0, "k1", 2), used(0, "k2", 4), used(1, "k1", 8)]
        await (await opened.database()).usage.add(rows)
        await opened.close()

    asyncio.run(add())


def test_usage_is_summed_and_cut_by_days(store):
    fill(store)
    rows = [json.loads(line) for line in run("usage", "--by", "day,key", "--json").splitlines()]
    found = [(row["day"], row["key"], row["requests"], row["output_tokens"], row["cost_dollars"]) for row in rows]
    assert found == [("1970-01-01", "k1", 2, 3, 3.0), ("1970-01-01", "k2", 1, 4, 4.0), ("1970-01-02", "k1", 1, 8, 8.0)]
    (row,) = map(json.loads, run("usage", "--by", "model", "--since", "1970-01-02", "--json").splitlines())
    assert row["output_tokens"] == 8
    (row,) = map(json.loads, run("usage", "--by", "model", "--until", "1970-01-02", "--json").splitlines())
    assert row["output_tokens"] == 7


def test_usage_is_a_table_or_a_spreadsheet(store):
    fill(store)
    heading, *rows = csv.reader(io.StringIO(run("usage", "--by", "key", "--csv")))
    assert heading[:2] == ["key", "requests"]
    assert [row[:2] for row in rows] == [["k1", "3"], ["k2", "1"]]
    table = run("usage")
    assert "OUTPUT TOKENS" in table
    assert "1970-01-02" in table


def test_nothing_used_is_no_error():
    assert "REQUESTS" in run("usage")
    assert run("usage", "--json") == ""


def test_prices_are_set_listed_and_cleared():
    run("prices", "set", "m", "--input", "0.15", "--output", "0.6", "--cached-input", "0.075")
    assert run("prices", "list").splitlines()[1].split() == ["m", "0.15", "0.075", "0.6", "50%"]
    run("prices", "clear", "m")
    assert len(run("prices", "list").splitlines()) == 1
    with pytest.raises(NotFound):
        run("prices", "clear", "m")


def test_a_price_is_suggested_from_what_the_machine_can_do():
    rates = ("--prompt-tokens-per-second", "8000", "--output-tokens-per-second", "2000")
    told = run("prices", "suggest", "m", "--gpu-hour", "3", "--utilization", "0.2", *rates)
    assert told.splitlines()[-1] == "lightwell prices set m --input 0.520833 --output 2.08333"


@pytest.mark.slow
def test_what_the_machine_can_do_is_measured(smollm2):
    told = run("prices", "suggest", str(smollm2), "--machine-hour", "0.05")
    assert "tokens/s, at work 100% of the time" in told


def test_what_is_not_meant_is_said():
    with pytest.raises(InvalidRequest, match="colour"):
        run("usage", "--by", "colour")
    with pytest.raises(InvalidRequest, match="2026-01-31"):
        run("usage", "--since", "monday")
