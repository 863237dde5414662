"""Calling: what each choice of a request with tools needs, beside its prompt, to call them."""

import asyncio
from dataclasses import dataclass

from lightwell.errors import InvalidRequest
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.grammar import arguments_grammar, complaint_about, forced_grammar
from lightwell.gateway.tools.parser import Parser


@dataclass(frozen=True)
class Calling:
    """``grammar`` constrains the answer, empty where the model decides; ``shown`` are control tokens to be read."""

    style: type[Parser]
    tools: Tools
    grammar: str
    shown: frozenset[int]

    def parser(self) -> Parser:
        return self.style(self.tools.schemas.keys(), self.tools.most)


async def calling_for(gateway: Gateway, tools: Tools) -> Calling:
    """Raises InvalidRequest, by its place, for a schema that a forced call cannot be held to."""
    dialect = gateway.dialect
    grammar = ""
    if tools.forced:
        await asyncio.to_thread(_check_schemas, tools)
        grammar = forced_grammar(dialect.parser, tools, gateway.tokenizer)
    return Calling(dialect.parser, tools, grammar, dialect.shown)


def _check_schemas(tools: Tools) -> None:
    for index, name in enumerate(tools.schemas):
        if name not in tools.forced:
            continue
        if complaint := complaint_about(arguments_grammar(tools.schemas[name])):
            where = f"tools[{index}].function.parameters"
            raise InvalidRequest(f"{where} cannot constrain a call: {complaint}", param=where)
