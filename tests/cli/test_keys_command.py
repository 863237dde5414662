"""``lightwell keys`` on the store itself."""

import json

import pytest
from typer.testing import CliRunner

from lightwell.cli.main import app
from lightwell.errors import InvalidRequest, NotFound


@pytest.fixture(autouse=True)
def _store(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTWELL_STORE", str(tmp_path / "store.db"))


def keys(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_key_is_shown_once_and_never_again(tmp_path):
    secret = keys("create", "ann", "--team", "red", "--model", "a", "--model", "b", "--expires-in", "30d").split()[0]
    table = keys("list")
    assert secret not in table
    assert secret[:8] in table
    for text in ("ann", "red", "a,b", "active"):
        assert text in table
    assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_keys_are_rotated_and_revoked():
    made = json.loads(keys("create", "ann", "--admin", "--json"))
    new = json.loads(keys("rotate", made["id"], "--overlap", "1h", "--json"))
    assert new["rotated_from"] == made["id"]
    assert new["admin"] is True
    assert "revoked" in keys("revoke", made["id"])
    status = {key["id"]: key["status"] for key in map(json.loads, keys("list", "--json").splitlines())}
    assert status == {made["id"]: "revoked", new["id"]: "active"}
    with pytest.raises(InvalidRequest, match="revoked"):
        keys("rotate", made["id"])


def test_what_is_not_there_or_not_meant_is_said():
    for command in ("rotate", "revoke"):
        with pytest.raises(NotFound, match="key_x"):
            keys(command, "key_x")
    with pytest.raises(InvalidRequest, match="expires-in"):
        keys("create", "ann", "--expires-in", "soon")
