"""The manual names what there is: every parameter, every option of the server, every command."""

from pathlib import Path

import msgspec
import pytest

from lightwell.cli.main import app, bench
from lightwell.config import ServeConfig
from lightwell.gateway.bodies import ChatBody, CompletionBody
from lightwell.gateway.parameters import ACCEPTED, REFUSED

ROOT = Path(__file__).resolve().parents[1]
FIELDS = {field.name for kind in (ChatBody, CompletionBody) for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("name", sorted(FIELDS | ACCEPTED | set(REFUSED)))
def test_every_parameter_is_in_the_manual(name):
    assert f"`{name}`" in (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", sorted(ServeConfig.__struct_fields__))
def test_every_option_of_the_server_is_in_the_manual(name):
    if name != "model":
        assert f"`--{name.replace('_', '-')}`" in (ROOT / "docs" / "serving.md").read_text()


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"lightwell {command.name or command.callback.__name__}" in readme
    for command in bench.registered_commands:
        assert command.name is not None
        assert command.name in readme
