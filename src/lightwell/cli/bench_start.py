"""``lightwell bench start``: from the start of a server's process to the first token of an answer, over HTTP.

Starts with and without the pack cache take turns, so that what the machine does besides meets both alike.
"""

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lightwell.checkpoints.catalog import pull
from lightwell.errors import StartupError
from lightwell.units import Seconds

_DEADLINE: Seconds = 120.0
_RETRY: Seconds = 0.005
_BODY = json.dumps({"model": "model", "prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": True})


def bench_start(model: str, repeat: int, threads: int | None) -> None:
    """Print the median and the range of ``repeat`` starts of each kind."""
    path = pull(model)
    kinds: dict[str, list[Seconds]] = {"--pack-cache": [], "--no-pack-cache": []}
    start(path, "--pack-cache", threads)  # fills the cache, and the system's with the files
    for _ in range(repeat):
        for flag, times in kinds.items():
            times.append(start(path, flag, threads))
    for name, times in zip(("warm", "none"), kinds.values(), strict=True):
        print(f"start to first token, pack cache {name}: {_summary(times)}")


def start(path: Path, flag: str, threads: int | None) -> Seconds:
    """Start a server, ask it for one token, and stop it. Raises StartupError where it ends before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "lightwell", "serve", str(path), "--port", str(port), flag]
    command += ["--served-model-name", "model", *(["--threads", str(threads)] if threads else [])]
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
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


def _summary(times: list[Seconds]) -> str:
    return f"{statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f}, {len(times)} starts)"
