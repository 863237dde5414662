"""JSON and text beside the weights, read strictly: every fault is a CheckpointError naming the file."""

import json
from pathlib import Path
from typing import Any

from lightwell.errors import CheckpointError


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(path, f"is not UTF-8 text: {error.reason} at byte {error.start}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    return parse_json(path, read_text(path), "the file")


def parse_json(path: Path, text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text``; ``what`` names that part of the file. No field may appear twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(path, f"{what} names {twice!r} twice")
        return fields

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"{what} cannot be read as JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(path, f"{what} is JSON, but not an object with named fields")
    return value
