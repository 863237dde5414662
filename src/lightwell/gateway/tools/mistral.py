"""The styles of Mistral: after [TOOL_CALLS] an array of calls, or in newer models a name, [ARGS] and the arguments."""

import json
import re
from hashlib import blake2b

from lightwell.gateway.tools.parser import Parser
from lightwell.gateway.tools.values import NotACall, Steps, spaces, value

_HEADER = re.compile(r"([^\s\[]+)(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*")
_LONGEST_HEADER = 256  # characters: a name of 64, the markers and an id
_ID = re.compile("[a-zA-Z0-9]{9}")


class Mistral(Parser):
    """Writes the newer way; reads both."""

    name = "mistral"
    begins = ("[TOOL_CALLS]",)
    between = ""
    markers = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    @staticmethod
    def around(name: str) -> tuple[str, str]:
        return f"[TOOL_CALLS]{name}[ARGS]", ""

    @staticmethod
    def call_id(given: str) -> str:
        """Mistral's templates take nine letters or digits and nothing else."""
        return given if _ID.fullmatch(given) else blake2b(given.encode(), digest_size=5).hexdigest()[:9]

    def _call(self, begin: str, character: str) -> Steps[str]:
        character = yield from spaces(character)
        return (yield from self._array() if character == "[" else self._named(character))

    def _array(self) -> Steps[str]:
        while True:
            character = yield from self._object((yield from spaces((yield))))
            character = yield from spaces(character)
            if character != ",":
                return (yield from self._closed("]", character))

    def _named(self, character: str) -> Steps[str]:
        header = ""
        while character != "{":
            header += character
            if character == "" or len(header) > _LONGEST_HEADER:
                raise NotACall(character)
            character = yield
        match = _HEADER.fullmatch(header)
        if match is None or match[1] not in self._names:
            raise NotACall(character)
        self._tell(match[1])
        return (yield from value(character, self._argue, self._end))


class MistralArray(Mistral):
    """Writes and reads the older way."""

    opening, between, closing = "[TOOL_CALLS][", ", ", "]"

    @staticmethod
    def around(name: str) -> tuple[str, str]:
        return f'{{"name": {json.dumps(name)}, "arguments": ', "}"

    def _call(self, begin: str, character: str) -> Steps[str]:
        character = yield from spaces(character)
        if character != "[":
            raise NotACall(character)
        return (yield from self._array())
