"""The tests of everything that is kept, once more on PostgreSQL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import postgres_url
from tests.gateway.fake_engine import POSTGRESQL

__all__ = ["postgres_url"]
KEPT = ("keys", "conversation", "limits", "bill", "batches", "responses")
# These look at the file, or see that none is opened.
OF_SQLITE = "nothing_is_opened or nothing_is_kept_unasked or is_in_the_store_or_the_log"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_kept_is_kept_on_postgresql_too(postgres_url):
    files = [path for name in KEPT if (path := Path(__file__).parent / f"test_{name}.py").exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", f"not ({OF_SQLITE})", *map(str, files)]
    tested = subprocess.run(command, env=os.environ | {POSTGRESQL: postgres_url}, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout[-8000:]
