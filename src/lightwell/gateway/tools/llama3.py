"""The style of Llama 3: a bare JSON object, after <|python_tag|> in some versions; several with semicolons between."""

import json

from lightwell.gateway.tools.parser import Parser
from lightwell.gateway.tools.values import Steps, spaces


class Llama3(Parser):
    name = "llama3"
    begins = ("<|python_tag|>", "{")
    between = "; "
    markers = ("<|python_tag|>",)

    @staticmethod
    def around(name: str) -> tuple[str, str]:
        return f'{{"name": {json.dumps(name)}, "parameters": ', "}"

    def _call(self, begin: str, character: str) -> Steps[str]:
        if begin == "{":
            character = yield from self._members(character)
        else:
            character = yield from self._object((yield from spaces(character)))
        if (following := (yield from spaces(character))) == ";":
            self._held = ""
            return (yield)
        return following
