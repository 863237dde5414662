"""The short way into ``serve`` takes what typer would take, and leaves the rest to it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lightwell.cli import serve as serve_command
from lightwell.cli.entry import plain_flags
from lightwell.cli.main import app
from lightwell.config import ServeConfig

LINES = [
    [],
    ["tiny"],
    ["--port", "0", "tiny"],
    ["tiny", "--port=0", "--threads", "2", "--watermark", "0.5", "--log-level", "debug"],
    ["tiny", "--port", "1", "--port", "2"],
    ["tiny", "--served-model-name", "a", "--served-model-name=b"],
    ["tiny", "--no-pack-cache", "--enable-prefix-caching"],
    ["tiny", "--pack-cache", "--no-pack-cache"],
    ["tiny", "--kv-cache-memory", "2GiB", "--chat-template", "a=b.jinja", "--host", "::1"],
]
LEFT_TO_TYPER = [
    ["--help"],
    ["tiny", "--help"],
    ["tiny", "other"],
    ["tiny", "--prot", "1"],
    ["tiny", "--port"],
    ["tiny", "--port", "--threads"],
    ["tiny", "--pack-cache=1"],
    ["tiny", "--no-port", "1"],
    ["tiny", "--max_num_seqs", "1"],
    ["tiny", "--model", "x"],
    ["tiny", "-p", "1"],
    ["--", "tiny"],
]


@pytest.mark.parametrize("words", LINES)
def test_plain_options_are_understood_as_typer_does(words, monkeypatch):
    seen = []
    monkeypatch.setattr(serve_command, "serve", lambda **flags: seen.append(ServeConfig.load(**flags)))
    assert CliRunner().invoke(app, ["serve", *words], catch_exceptions=False).exit_code == 0
    assert seen == [ServeConfig.load(**plain_flags(words))]


@pytest.mark.parametrize("words", LEFT_TO_TYPER)
def test_the_rest_is_left_to_typer(words):
    assert plain_flags(words) is None


@given(st.lists(st.text(max_size=8) | st.sampled_from(["--port", "--no-pack-cache", "--served-model-name", "tiny"])))
def test_any_words_are_options_or_left(words):
    flags = plain_flags(words)
    assert flags is None or flags.keys() <= set(ServeConfig.__struct_fields__)


def test_every_option_has_a_plain_form():
    """A switch whose own name began with no_ could not be told from another's off."""
    assert not [name for name in ServeConfig.__struct_fields__ if name.startswith("no_")]


def test_serve_imports_neither_typer_nor_pydantic():
    code = (
        "import sys; from lightwell.cli import entry, serve; "
        "unwanted = {'typer', 'pydantic', 'rich', 'asyncio'}; "
        "serve.serve = lambda worker, **flags: print(sorted(unwanted & sys.modules.keys())); "
        "sys.argv = ['lightwell', 'serve', 'tiny', '--port', '0']; entry.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("words", [["tiny", "other"], ["tiny", "--prot", "1"]])
def test_what_typer_refuses_leaves_no_engine_behind(words):
    """The engine's process is started first. It holds the pipe of its standard error open for as long as it lives."""
    done = subprocess.run([sys.executable, "-m", "lightwell", "serve", *words], capture_output=True, timeout=60)
    assert done.returncode == 2


def test_the_module_runs_any_command():
    done = subprocess.run([sys.executable, "-m", "lightwell", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.strip()
