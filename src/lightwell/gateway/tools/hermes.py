"""The style of Hermes and Qwen: each call a JSON object between tags."""

import json

from lightwell.gateway.tools.parser import Parser
from lightwell.gateway.tools.values import Steps, spaces


class Hermes(Parser):
    name = "hermes"
    begins = ("<tool_call>",)
    markers = ("<tool_call>", "</tool_call>")

    @staticmethod
    def around(name: str) -> tuple[str, str]:
        return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ', "}\n</tool_call>"

    def _call(self, begin: str, character: str) -> Steps[str]:
        character = yield from self._object((yield from spaces(character)))
        return (yield from self._closed("</tool_call>", character))
