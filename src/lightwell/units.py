"""The units that numbers carry through the code, and how people read and write them."""

import re
from typing import TypeAlias

Bytes: TypeAlias = int
Seconds: TypeAlias = float
Tokens: TypeAlias = int
Picodollars: TypeAlias = int  # 1e-12 dollars: $0.15 for a million tokens are 150,000 for one

PICODOLLARS = 10**12  # in a dollar

_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|)\s*", re.IGNORECASE)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> Bytes:
    """Read a size such as ``512MiB``, ``4G`` or ``1048576``; every prefix is a power of 1024.

    Raises ValueError when the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number with KiB, MiB, GiB or TiB")
    return int(float(match[1]) * _BINARY[match[2].lower()])


def format_bytes(count: Bytes) -> str:
    """Write a size for people: ``96.6 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def parse_seconds(text: str) -> Seconds:
    """Read a duration such as ``50ms``, ``1.5s``, ``2m``, ``30d`` or ``0.05`` (seconds).

    Raises ValueError when the text is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number with us, ms, s, m, h or d")
    return float(match[1]) * _SECONDS[match[2].lower()]


def format_seconds(duration: Seconds) -> str:
    """Write a duration for people: ``850 us``, ``12.3 ms``, ``4.20 s``."""
    if duration < 1e-3:
        return f"{duration * 1e6:.0f} us"
    if duration < 1:
        return f"{duration * 1e3:.1f} ms"
    return f"{duration:.2f} s"
