"""Real databases for tests: throwaway servers on loopback, on any free port, gone when the tests are."""

import asyncio
import contextlib
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if server is None:
        pytest.skip("this machine has no redis-server")
    with running_redis(server) as url:
        yield url


@contextlib.contextmanager
def running_redis(server: str) -> Iterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            server,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _until_open(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Of a server; each test makes itself a database there."""
    binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [os.path.dirname(shutil.which("initdb") or "")]
    if not binaries[-1]:
        pytest.skip("this machine has no PostgreSQL")
    port, folder = free_port(), tempfile.mkdtemp()
    as_user = []
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and this machine has no runuser")
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data, tools = f"{folder}/data", binaries[-1]

    def run(*command: str) -> None:
        subprocess.run([*as_user, *command], check=True, stdout=subprocess.DEVNULL, cwd=folder)

    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    try:
        run(
            f"{tools}/initdb",
            "-D",
            data,
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-U",
            "postgres",
        )
        run(f"{tools}/pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            run(f"{tools}/pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server_url: str) -> str:
    """The address of an empty database on this server."""
    import asyncpg

    name = f"test_{uuid.uuid4().hex}"

    async def create() -> None:
        connection = await asyncpg.connect(server_url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    with ThreadPoolExecutor(1) as thread:  # whoever asks may have an event loop of its own
        thread.submit(asyncio.run, create()).result()
    return f"{server_url.rpartition('/')[0]}/{name}"


def _until_open(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")
