"""What ``lightwell config check`` prints, and what it keeps to itself."""

import msgspec
import pytest
from typer.testing import CliRunner

from lightwell.cli.main import app
from lightwell.config import ServeConfig
from lightwell.errors import StartupError


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ServeConfig.__struct_fields__:
        monkeypatch.delenv(f"LIGHTWELL_{name.upper()}", raising=False)


def test_every_setting_has_a_line_with_its_value_its_source_and_its_meaning(monkeypatch):
    monkeypatch.setenv("LIGHTWELL_THREADS", "3")
    result = CliRunner().invoke(app, ["config", "check", "--json"])
    rows = [msgspec.json.decode(line) for line in result.output.splitlines()]
    assert [row["name"] for row in rows] == list(ServeConfig.__struct_fields__)
    assert all(row["meaning"] for row in rows)
    threads = next(row for row in rows if row["name"] == "threads")
    assert (threads["value"], threads["source"]) == ("3", "LIGHTWELL_THREADS")
    table = CliRunner().invoke(app, ["config", "check"]).output
    assert all(name in table for name in ServeConfig.__struct_fields__)


def test_passwords_are_not_shown(monkeypatch):
    monkeypatch.setenv("LIGHTWELL_STORE", "postgresql://me:hush@db.example/x")
    output = CliRunner().invoke(app, ["config", "check"]).output
    assert "postgresql://me:***@db.example/x" in output
    assert "hush" not in output


def test_what_is_wrong_is_said(monkeypatch):
    monkeypatch.setenv("LIGHTWELL_THREADS", "many")
    result = CliRunner().invoke(app, ["config", "check"])
    assert isinstance(result.exception, StartupError)
    assert "threads" in str(result.exception)
    assert "LIGHTWELL_THREADS" in str(result.exception)
