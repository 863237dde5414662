"""Calling: what each choice of a request with tools needs, beside its prompt, to call them."""

import asyncio
from dataclasses import dataclass, replace

from lightwell.errors import InvalidRequest
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.structured import check_schema, either
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.grammar import arguments_grammar, forced_grammar
from lightwell.gateway.tools.parser import Parser
from lightwell.sampling.grammar import complaint_about


@dataclass(frozen=True)
class Calling:
    """``grammar`` constrains the answer, empty where the model decides; ``shown`` are control tokens to be read."""

    style: type[Parser]
    tools: Tools
    grammar: str
    shown: frozenset[int]

    def parser(self) -> Parser:
        return self.style(self.tools.schemas.keys(), self.tools.most)


async def calling_for(gateway: Gateway, tools: Tools, form: str = "") -> Calling:
    """``form`` is the grammar of an answer that is no call: the model then writes either. Where it has to call, that is
    all it may write.

    Raises InvalidRequest, by its place, for a schema that a call cannot be held to.
    """
    dialect, grammar = gateway.dialect, ""
    if tools.forced or form:
        held = tools if tools.forced else replace(tools, forced=tuple(tools.schemas))
        await asyncio.to_thread(_check_schemas, held)
        calls = forced_grammar(dialect.parser, held, gateway.tokenizer)
        grammar = calls if tools.forced else either(form, calls)
    return Calling(dialect.parser, tools, grammar, dialect.shown)


def _check_schemas(tools: Tools) -> None:
    for index, name in enumerate(tools.schemas):
        if name not in tools.forced:
            continue
        where = f"tools[{index}].function.parameters"
        check_schema(tools.schemas[name], where)
        if complaint := complaint_about(arguments_grammar(tools.schemas[name])):
            raise InvalidRequest(f"{where} cannot constrain a call: {complaint}", param=where)
