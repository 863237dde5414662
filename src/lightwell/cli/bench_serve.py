"""``lightwell bench serve``: a server under load, measured over HTTP as its clients see it."""

import dataclasses
import json as json_text
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from lightwell.cli.load import Load, metrics, run_load
from lightwell.errors import StartupError
from lightwell.runtimes.base import KVCacheDtype
from lightwell.units import Seconds

_START_SECONDS = 60.0
_WARM_UP_SEED = 1


def bench_serve(
    model: str, url: str | None, load: Load, threads: int | None, kv_cache_dtype: KVCacheDtype, json: bool
) -> None:
    """Run the load against ``url``, or against a server started for it, and print what was measured."""
    if url is not None and kv_cache_dtype != "f16":
        raise StartupError("--kv-cache-dtype is for the server that this command starts: leave --url out.")
    if url is not None:
        print(_report(load, metrics(run_load(url, model, load)), json))
        return
    with started_server(model, threads, kv_cache_dtype) as address:
        run_load(address, model, dataclasses.replace(load, requests=load.streams, seed=_WARM_UP_SEED))
        print(_report(load, metrics(run_load(address, model, load)), json))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started_server(model: str, threads: int | None, kv_cache_dtype: KVCacheDtype = "f16") -> Iterator[str]:
    """A Lightwell server on a free port for the time of the block; yields its address."""
    port = free_port()
    command = [*serve_command(model, port, threads), "--kv-cache-dtype", kv_cache_dtype]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_ready(address, process)
        yield address
    finally:
        process.terminate()
        process.wait()


def serve_command(model: str, port: int, threads: int | None) -> list[str]:
    command = [sys.executable, "-m", "lightwell.cli.main", "serve", model, "--port", str(port)]
    return command + (["--threads", str(threads)] if threads else [])


def wait_ready(address: str, process: subprocess.Popen[bytes], patience: Seconds = _START_SECONDS) -> None:
    """Wait until the server's /health says so. Raises StartupError where it ends first, or takes too long."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise StartupError(f"The server did not become ready on {address}.")


def _report(load: Load, found: dict[str, float], json: bool) -> str:
    """One line: throughput, then TTFT and ITL as p50/p99 in milliseconds; or all of it as JSON."""
    if json:
        return json_text.dumps({"measure": "serve", **dataclasses.asdict(load), **found})
    latencies = (f"{name.upper()} {_milliseconds(found, name)} ms" for name in ("ttft", "itl"))
    rate = f"{found['tokens_per_second']:.0f} output tokens/s"
    return f"{load.streams} streams, {load.requests} requests: {rate}, {', '.join(latencies)} (p50/p99)"


def _milliseconds(found: dict[str, float], name: str) -> str:
    """``-`` where there was none: an answer of one token has no time between tokens."""
    percentiles = (found.get(f"{name}_{percent}_seconds") for percent in ("p50", "p99"))
    return "/".join("-" if value is None else f"{value * 1e3:.1f}" for value in percentiles)
