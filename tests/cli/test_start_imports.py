"""What a start must not wait for: libraries that neither process needs before its first token."""

import subprocess
import sys

import pytest

_SERVER = """
import lightwell.cli.entry, lightwell.cli.serve, lightwell.config, lightwell.host.memory, lightwell.host.supervisor
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.gateway.app import create_app
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.serve import serve
from lightwell.text import load_template, load_tokenizer
"""
_ENGINE = "import lightwell.host.worker, lightwell.runtimes.cpu"


@pytest.mark.parametrize(
    ("imports", "late"),
    [
        (_SERVER, {"numpy", "sqlalchemy", "alembic", "typer", "rich", "llguidance", "lightwell.runtimes.base"}),
        (_ENGINE, {"jinja2", "tokenizers", "starlette", "uvicorn", "asyncio", "llguidance"}),
    ],
    ids=["server", "engine"],
)
def test_a_process_does_not_import_what_the_other_or_a_later_request_needs(imports, late):
    code = f"import sys\n{imports}\nprint(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert not late & set(said.split())


def test_opening_a_gguf_file_and_reading_its_vocabulary_takes_no_numpy(smollm2):
    code = f"""
import sys
from pathlib import Path
from lightwell.checkpoints import open_checkpoint
from lightwell.host.memory import plan_kv
from lightwell.text import load_tokenizer
checkpoint = open_checkpoint(Path({str(smollm2)!r}))
plan_kv(checkpoint, 64, None)
load_tokenizer(checkpoint)
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
