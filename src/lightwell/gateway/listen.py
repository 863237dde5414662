"""The listening socket. Light to import: a server takes its port before anything that takes time."""

import errno
import socket

from lightwell.errors import StartupError

_BACKLOG = 2048  # connections that may wait to be accepted


def listen(host: str, port: int) -> socket.socket:
    """Take the port before anything heavy starts; port 0 takes any free one. Raises StartupError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartupError(f"--host {host}: {error.strerror}.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart need not wait for old connections to time out. Two servers still cannot share a port: listening
        # begins here and now, and the address of a listening socket is taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(_cannot_listen(host, port, error)) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program. Stop it, or choose another with --port."
    return f"Cannot listen on {host}, port {port}: {error.strerror}."
