"""Calling: what each choice of a request with tools needs, beside its prompt, to call them."""

from dataclasses import dataclass, replace

from lightwell.gateway.served import ServedModel
from lightwell.gateway.structured import either
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.grammar import arguments_grammar, forced_grammar
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


async def calling_for(model: ServedModel, tools: Tools, form: str = "") -> Calling:
    """``form`` is the grammar of an answer that is no call: the model then writes either. Where it has to call, that is
    all it may write.

    Raises InvalidRequest, by its place, for a schema that a call cannot be held to.
    """
    dialect, grammar = model.dialect, ""
    if tools.forced or form:
        held = tools if tools.forced else replace(tools, forced=tuple(tools.schemas))
        await _check_schemas(model, held)
        calls = forced_grammar(dialect.parser, held, model.tokenizer)
        grammar = calls if tools.forced else either(form, calls)
        await model.grammars.check(grammar, "tools")
    return Calling(dialect.parser, tools, grammar, dialect.shown)


async def _check_schemas(model: ServedModel, tools: Tools) -> None:
    for index, name in enumerate(tools.schemas):
        if name in tools.forced:
            where = f"tools[{index}].function.parameters"
            await model.grammars.check(arguments_grammar(tools.schemas[name], where), where)
