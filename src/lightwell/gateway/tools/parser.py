"""Parser: the tool calls in one answer, found while its text comes in; the styles are its subclasses.

What the pieces of text say joined does not depend on where they were cut. Text outside of calls is content. A call is
told once its arguments begin, if it names a function of the request; whatever turns out not to be a call is content.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from lightwell.gateway.tools.values import NotACall, Steps, expect, nothing, spaces, text, value
from lightwell.text.stops import StopStrings

_ARGUMENTS = frozenset({"arguments", "parameters"})
_BESIDE = frozenset({"id", "type"})  # members of a call that may come before its name


@dataclass(slots=True)
class CallDelta:
    """More of one call: ``name`` once, with its first delta, and with it the ``id`` that the answer gives it. The
    pieces of ``arguments`` join to a JSON object, or to the beginning of one where the answer ended inside."""

    index: int
    name: str | None
    arguments: str
    id: str = ""


class Parser(ABC):
    """One answer being read: calls of the functions in ``names``, and after ``most`` of them nothing any more.

    ``whole`` counts the calls that are complete. The class attributes are how the style writes calls: ``opening``,
    then each call with ``between`` two of them, then ``closing``.
    """

    name: ClassVar[str]
    begins: ClassVar[tuple[str, ...]]  # the strings that begin a call in free text
    markers: ClassVar[tuple[str, ...]] = ()  # what vocabularies may have as control tokens, which are else not shown
    opening: ClassVar[str] = ""
    between: ClassVar[str] = "\n"
    closing: ClassVar[str] = ""

    def __init__(self, names: Collection[str], most: int | None = None) -> None:
        self.whole = 0
        self._names, self._most = names, most
        self._told = 0
        self._held = ""  # what was read and is not yet known to be content or a call
        self._inside = False  # a call whose arguments have begun and not ended
        self._content: list[str] = []
        self._calls: list[CallDelta] = []
        self._steps = self._read()
        next(self._steps)

    @staticmethod
    @abstractmethod
    def around(name: str) -> tuple[str, str]:
        """What stands before and after the arguments of a call."""

    @staticmethod
    def call_id(given: str) -> str:
        """The id of a call as the templates of this style take it."""
        return given

    @property
    def full(self) -> bool:
        return self.whole == self._most

    @classmethod
    def written(cls, calls: Collection[tuple[str, str]]) -> str:
        """Calls, each a name and its arguments as JSON, as a model of this style writes them."""
        each = [before + arguments + after for name, arguments in calls for before, after in [cls.around(name)]]
        return cls.opening + cls.between.join(each) + cls.closing

    def feed(self, more: str) -> tuple[str, list[CallDelta]]:
        """Take the next piece of the answer and return what is now certain: content, and calls."""
        for character in more:
            if self.full:
                break
            self._held += character
            self._steps.send(character)
        return self._taken()

    def finish(self) -> tuple[str, list[CallDelta]]:
        """The answer is over: what was held back is content, but for spaces after a call, and half a word in one."""
        if not self.full:
            with suppress(StopIteration):
                self._steps.send("")
        return self._taken()

    @abstractmethod
    def _call(self, begin: str, character: str) -> Steps[str]:
        """Read one call or more, after one of ``begins``; return the first character that is none of theirs."""

    def _read(self) -> Steps[None]:
        character = yield
        while character:
            try:
                begin, character = yield from self._free_text(character)
                character = yield from self._call(begin, character)
                self._held = character
            except NotACall as failure:
                character = failure.character
                if character or not self._inside:
                    self._say(self._held.removesuffix(character))
                self._held, self._inside = character, False

    def _free_text(self, character: str) -> Steps[tuple[str, str]]:
        """Content, up to what may begin a call and its next character. Spaces before a call belong to it."""
        stops = _stops(self.begins)
        state = stops.start
        while character:
            state = stops.advance(state, character)
            if state.stop is not None:
                return state.stop, (yield)
            self._release(state.depth)
            character = yield
        if self._told and self._held.isspace():
            self._held = ""
        raise NotACall(character)

    def _release(self, depth: int) -> None:
        """Say what is held but for its last ``depth`` characters, which may begin a call, and spaces before them."""
        certain = self._held[: len(self._held) - depth].rstrip()
        if certain:
            self._say(certain)
            self._held = self._held[len(certain) :]

    def _object(self, character: str) -> Steps[str]:
        """One call as an object that has its name and, under one of two names, its arguments."""
        if character != "{":
            raise NotACall(character)
        return (yield from self._members((yield)))

    def _members(self, character: str) -> Steps[str]:
        """The rest of a call's object, after its brace. Other members are read over if they come after one of the two;
        an object that begins with another member is something else. Without arguments they are empty."""
        name: str | None = None
        early: list[str] | None = None  # arguments that came before the name
        told = False
        while True:
            key, character = yield from text((yield from spaces(character)))
            character = yield from expect(":", character)
            if key == "name" and name is None:
                name, character = yield from self._known(character)
                if early is not None:
                    told = self._tell_whole(name, "".join(early), character)
            elif key in _ARGUMENTS and early is None and not told:
                if character != "{":
                    raise NotACall(character)
                if name is None:
                    early = []
                    character = yield from value(character, early.append)
                else:
                    told = True
                    self._tell(name)
                    character = yield from value(character, self._argue, self._end)
            elif name is None and early is None and key not in _BESIDE:
                raise NotACall(character)
            else:
                character = yield from value(character, nothing)
            character = yield from spaces(character)
            if character == "}" and name is not None:
                if not told:
                    self._tell_whole(name, "{}", "")
                self._held = ""
                return (yield)
            if character != ",":
                raise NotACall(character)
            character = yield

    def _known(self, character: str) -> Steps[tuple[str, str]]:
        """The name of a function of the request, as a string, and the next character."""
        name, character = yield from text(character)
        if name not in self._names:
            raise NotACall(character)
        return name, character

    def _closed(self, literal: str, character: str) -> Steps[str]:
        """Spaces and what closes a call; where the answer ends inside, that is well too."""
        character = yield from spaces(character)
        for wanted in literal:
            if character == "":
                break
            if character != wanted:
                raise NotACall(character)
            character = yield
        return character

    def _say(self, content: str) -> None:
        if content:
            self._content.append(content)

    def _tell(self, name: str) -> None:
        self._calls.append(CallDelta(self._told, name, ""))
        self._told += 1
        self._held, self._inside = "", True

    def _argue(self, piece: str) -> None:
        self._calls.append(CallDelta(self._told - 1, None, piece))
        self._held = ""

    def _end(self) -> None:
        self.whole += 1
        self._inside = False

    def _tell_whole(self, name: str, arguments: str, character: str) -> bool:
        """Tell a call at once; ``character`` is already read and not yet used."""
        self._tell(name)
        self._argue(arguments)
        self._end()
        self._held = character
        return True

    def _taken(self) -> tuple[str, list[CallDelta]]:
        content, calls = "".join(self._content), merged(self._calls)
        self._content, self._calls = [], []
        return content, calls


def merged(deltas: list[CallDelta]) -> list[CallDelta]:
    """The same, with one delta for each call."""
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        call = calls.setdefault(delta.index, CallDelta(delta.index, delta.name, "", delta.id))
        call.arguments += delta.arguments
    return list(calls.values())


@cache
def _stops(begins: tuple[str, ...]) -> StopStrings:
    return StopStrings(begins)
