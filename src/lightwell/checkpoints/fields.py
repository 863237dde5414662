"""Typed reading of what a file says about its model: GGUF keys, or the fields of a config.json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from lightwell.errors import CheckpointError

T = TypeVar("T", int, float, str, bool)

_MOST = 2**40  # far beyond any dimension; keeps arithmetic with counts from overflowing a float
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class Fields:
    """The named values of one file, or of one object within it, whose ``prefix`` goes before names in messages.

    A value of null counts as absent. ``read`` has the names that were asked for. Every fault is a CheckpointError
    naming the file and the field.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self.values, self.prefix = path, values, prefix
        self.read: set[str] = set()

    def raw(self, name: str) -> Any:
        """The value as it stands, None when absent."""
        self.read.add(name)
        return self.values.get(name)

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value of that type; without a default the field must be there."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise CheckpointError(self.path, f"{self.label(name)} is missing")
            return default
        whole_as_float = kind is float and type(value) is int
        if type(value) is not kind and not whole_as_float:
            raise self.unfit(name, f"{_KINDS[kind]} is needed")
        try:
            return kind(value)
        except OverflowError:
            raise self.unfit(name, "it is too large") from None

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 up."""
        value = self.get(name, int, default)
        if not 1 <= value <= _MOST:
            raise self.unfit(name, "a number from 1 to 2^40 is needed")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(name, float, default)
        if not (math.isfinite(value) and value > 0):
            raise self.unfit(name, "a finite number above 0 is needed")
        return value

    def group(self, name: str) -> "Fields":
        """The fields of the object of that name; none when it is absent."""
        value = self.raw(name) or {}
        if not isinstance(value, dict):
            raise self.unfit(name, "an object with named fields is needed")
        return Fields(self.path, value, f"{self.prefix}{name}.")

    def label(self, name: str) -> str:
        return f"key {self.prefix + name!r}"

    def unfit(self, name: str, needed: str) -> CheckpointError:
        return CheckpointError(self.path, f"{self.label(name)} is {str(self.values.get(name))[:60]!r}: {needed}")
