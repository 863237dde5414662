"""Starting the engine's process. Light to import: a server starts it first, and both go on importing side by side."""

import socket
import subprocess
import sys
from typing import NamedTuple


class WorkerProcess(NamedTuple):
    """A worker that waits for its configuration; it ends when ``connection`` is closed."""

    connection: socket.socket
    process: subprocess.Popen[bytes]


def spawn_worker() -> WorkerProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "lightwell.host.worker", str(theirs.fileno())]
        return WorkerProcess(ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]))
