"""The styles of Gemma 3: a JSON object, or Python calls in a list, each with or without a fence around.

Gemma has no tokens for calls: its makers describe both forms for prompts. JSON is what is written here; a template may
ask for the other form, and both are read.
"""

import json

from lightwell.gateway.tools.parser import Parser
from lightwell.gateway.tools.values import NotACall, Steps, expect, spaces, value

_FENCE = "```"


class Gemma(Parser):
    name = "gemma"
    begins = (_FENCE, "{", "[")

    @staticmethod
    def around(name: str) -> tuple[str, str]:
        return f'{{"name": {json.dumps(name)}, "parameters": ', "}"

    def _call(self, begin: str, character: str) -> Steps[str]:
        if begin != _FENCE:
            return (yield from self._form(begin, character))
        while character.isalpha() or character == "_":  # tool_code, json, python
            character = yield
        character = yield from spaces(character)
        told = self._told
        while told == self._told or character not in {_FENCE[0], ""}:
            bracketed = character in {"{", "["}
            character = yield from self._form(character, (yield)) if bracketed else self._python(character)
            character = yield from spaces(character)
        return (yield from self._closed(_FENCE, character))

    def _form(self, bracket: str, character: str) -> Steps[str]:
        return (yield from self._members(character) if bracket == "{" else self._list(character))

    def _list(self, character: str) -> Steps[str]:
        while True:
            character = yield from spaces(character)
            character = yield from self._object(character) if character == "{" else self._python(character)
            character = yield from spaces(character)
            if character != ",":
                return (yield from self._closed("]", character))
            character = yield

    def _python(self, character: str) -> Steps[str]:
        """A call with keyword arguments. Their values are JSON or Python's spelling of it."""
        name, character = yield from _word(character)
        if name not in self._names or character != "(":
            raise NotACall(character)
        character = yield from spaces((yield))
        before = "{"
        while character != ")":
            key, character = yield from _word(character)
            character = yield from expect("=", character)
            if before == "{":
                self._tell(name)
            self._argue(f"{before}{json.dumps(key)}: ")
            self._held = character
            character = yield from spaces((yield from value(character, self._argue)))
            before = ", "
            if character == ",":
                character = yield from spaces((yield))
            elif character != ")":
                raise NotACall(character)
        if before == "{":
            self._tell_whole(name, "{}", "")
        else:
            self._argue("}")
            self._end()
        return (yield)


def _word(character: str) -> Steps[tuple[str, str]]:
    """A name, and the next character that is not a space."""
    word = ""
    while character.isalnum() or character in {"_", "-", "."}:
        word += character
        character = yield
    if not word:
        raise NotACall(character)
    return word, (yield from spaces(character))
