"""``lightwell bench start``: from the start of a server's process to the first token of an answer, over HTTP.

Starts with and without the pack cache take turns, so that what the machine does besides meets both alike.
"""

import http.client
import json as json_text
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lightwell.checkpoints.catalog import pull
from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.cli.bench_serve import free_port
from lightwell.errors import StartupError
from lightwell.units import Seconds

_DEADLINE: Seconds = 120.0
_RETRY: Seconds = 0.005
_BODY = json_text.dumps({"model": "model", "prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": True})


def bench_start(model: str, repeat: int, threads: int | None, json: bool) -> None:
    """Print ``repeat`` starts of each kind."""
    path = pull(model)
    kinds: dict[str, list[Seconds]] = {"--pack-cache": [], "--no-pack-cache": []}
    start(path, "--pack-cache", threads)  # fills the cache, and the system's with the files
    for _ in range(repeat):
        for flag, times in kinds.items():
            times.append(start(path, flag, threads))
    for name, times in zip(("warm", "none"), kinds.values(), strict=True):
        runs = Runs(tuple(times))
        if json:
            print(as_json("start", runs, "s", pack_cache=name))
        else:
            print(show(f"start to first token, pack cache {name}", runs, "s", digits=2))


def start(path: Path, flag: str, threads: int | None) -> Seconds:
    """Start a server, ask it for one token, and stop it. Raises StartupError where it ends before."""
    port = free_port()
    command = [sys.executable, "-m", "lightwell", "serve", str(path), "--port", str(port), flag]
    command += ["--served-model-name", "model", *(["--threads", str(threads)] if threads else [])]
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=with_bytecode())
        try:
            while not _first_token(port):
                if process.poll() is not None or time.perf_counter() - begin > _DEADLINE:
                    said.seek(0)
                    raise StartupError(f"The server did not answer: {said.read().decode(errors='replace').strip()}")
                time.sleep(_RETRY)
            return time.perf_counter() - begin
        finally:
            process.terminate()
            process.wait()


def with_bytecode() -> dict[str, str]:
    """The environment of a server whose start is measured. An installed package has its bytecode; the modules of a
    checkout would be compiled again at every start where Python may not keep it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _first_token(port: int) -> bool:
    """Whether the server has sent the first piece of an answer; False while it cannot yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_DEADLINE)
    try:
        connection.request("POST", "/v1/completions", _BODY, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status == 200 and response.readline().startswith(b"data: ")
    except OSError:
        return False
    finally:
        connection.close()
