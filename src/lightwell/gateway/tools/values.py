"""JSON values, read a character at a time and written out as valid JSON.

Python's spelling of the same is read too, because models slip into it: quotes 'like these', True, False and None. So
are raw line breaks in strings. Each reader is a generator that takes characters: it is given the first, and returns the
first that it does not use; the end of the text is "". What it reads it hands to ``out`` in pieces, which joined are at
any time the beginning of valid JSON, and JSON that was valid comes out as it was.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, str, T]
Out: TypeAlias = Callable[[str], None]

_SPACES = frozenset(" \t\n\r")
_QUOTES = frozenset("\"'")
_CLOSERS = {"{": "}", "[": "]"}
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_SCALAR = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-.")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null"} | {word: word for word in ("true", "false", "null")}


class NotACall(Exception):
    """The text is not what it began to be; ``character`` is the first that does not fit."""

    def __init__(self, character: str) -> None:
        super().__init__(character)
        self.character = character


def nothing(*_: str) -> None:
    """An ``out`` for what is not needed."""


def spaces(character: str, out: Out = nothing) -> Steps[str]:
    while character in _SPACES:
        out(character)
        character = yield
    return character


def expect(wanted: str, character: str) -> Steps[str]:
    """One character, with spaces around it."""
    character = yield from spaces(character)
    if character != wanted:
        raise NotACall(character)
    return (yield from spaces((yield)))


def text(character: str) -> Steps[tuple[str, str]]:
    """What a string says, and the next character."""
    pieces: list[str] = []
    character = yield from string(character, pieces.append)
    return json.loads("".join(pieces)), character


def string(character: str, out: Out) -> Steps[str]:
    quote = character
    if quote not in _QUOTES:
        raise NotACall(character)
    out('"')
    character = yield
    while character != quote:
        if character == "":
            raise NotACall(character)
        out((yield from _escape()) if character == "\\" else _inside(character))
        character = yield
    out('"')
    return (yield)


def _inside(character: str) -> str:
    """A character as a JSON string holds it."""
    return json.dumps(character, ensure_ascii=False)[1:-1]


def _escape() -> Steps[str]:
    """What stands after a backslash, as an escape that JSON has; before any other character the backslash is one."""
    character = yield
    if character == "":
        raise NotACall(character)
    if character in _ESCAPES:
        return "\\" + character
    if character == "u":
        return "\\u" + (yield from _four_digits())
    return "'" if character == "'" else "\\\\" + _inside(character)


def _four_digits() -> Steps[str]:
    digits = ""
    while len(digits) < 4:
        character = yield
        if character not in _HEX:
            raise NotACall(character)
        digits += character
    return digits


def value(character: str, out: Out, ended: Callable[[], None] = nothing) -> Steps[str]:
    """Any value. ``ended`` is called with the last character of an object or array, before another one is read."""
    closers: list[str] = []
    while True:
        character = yield from spaces(character, out)
        if closer := _CLOSERS.get(character):
            out(character)
            closers.append(closer)
            character = yield from spaces((yield), out)
            if character != closer:
                character = yield from _item(character, out, closer)
                continue
        elif character in _QUOTES:
            character = yield from string(character, out)
        else:
            character = yield from _scalar(character, out)
        character = yield from _after(character, out, ended, closers)
        if not closers:
            return character


def _item(character: str, out: Out, closer: str) -> Steps[str]:
    """What stands before the value of an item: in an object, its key."""
    if closer == "]":
        return character
    character = yield from spaces((yield from string(character, out)), out)
    if character != ":":
        raise NotACall(character)
    out(character)
    return (yield)


def _after(character: str, out: Out, ended: Callable[[], None], closers: list[str]) -> Steps[str]:
    """A value has ended: close what closes here, up to the next value or the end of the whole."""
    while closers:
        character = yield from spaces(character, out)
        if character == ",":
            out(character)
            return (yield from _item((yield from spaces((yield), out)), out, closers[-1]))
        if character != closers[-1]:
            raise NotACall(character)
        out(character)
        closers.pop()
        if not closers:
            ended()
        character = yield
    return character


def _scalar(character: str, out: Out) -> Steps[str]:
    """A number, or one of the words."""
    read = ""
    while character in _SCALAR:
        read += character
        character = yield
    if read not in _WORDS and not _NUMBER.fullmatch(read):
        raise NotACall(character)
    out(_WORDS.get(read, read))
    return character
