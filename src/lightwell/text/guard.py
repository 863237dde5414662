"""Keeping the names of control tokens that a user wrote apart from those that a chat template writes.

Before a template runs, each such name in the user's words gives way to a stand-in; after the text was cut at the
control tokens that are left, the stand-ins give way to the names again. Stand-ins are long random numbers: a user
cannot guess one, and templates that trim, change case or write JSON leave digits as they are.

A name that a template puts together from parts, as Phi-3's writes a role between <| and |>, is the template's own.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from lightwell.text.specials import SpecialSplitter

_DIGITS = 24


class Guard:
    """The stand-ins of one conversation."""

    def __init__(self, specials: SpecialSplitter) -> None:
        self._specials = specials
        self._stand_ins: dict[str, str] = {}  # by name

    def hide(self, value: Any) -> Any:
        """A copy of a JSON-like value with a stand-in for every name of a control token in its strings and keys."""
        if isinstance(value, str):
            return self._specials.replace(value, self._stand_in)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """The text with the names in place of their stand-ins."""
        for name, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, name)
        return text

    def _stand_in(self, name: str) -> str:
        return self._stand_ins.setdefault(name, random_number())


def random_number() -> str:
    """What nobody can guess and no template changes."""
    return str(10 ** (_DIGITS - 1) + secrets.randbelow(9 * 10 ** (_DIGITS - 1)))
