"""Messages as chat templates know them, with calls and their results, and the tools in our words where they must be."""

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import Message, ToolCall
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.dialect import Dialect
from lightwell.gateway.tools.parser import Parser

Plain: TypeAlias = dict[str, Any]
_INSTRUCTIONS = """\
# Tools

You can call functions. These are their descriptions, each a JSON object:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments in exactly this form:
{example}
Write that again for each further call. The results come in the next message. Where no function helps, use words."""


def for_template(messages: list[Message], tools: Tools | None, dialect: Dialect) -> list[Plain]:
    """The conversation for the template. Raises InvalidRequest by the place of what a message lacks or may not have.

    A template that does not know tools gets them in a system text, or before the first user's words if it has no place
    for one; calls as an assistant's words, and their results as a user's.
    """
    plain = [_plain(message, f"messages[{index}]", dialect) for index, message in enumerate(messages)]
    if dialect.native:
        return plain
    told = _in_words(plain, dialect.parser)
    return told if tools is None else _with_instructions(told, instructions(tools, dialect.parser), dialect)


def instructions(tools: Tools, parser: type[Parser]) -> str:
    """What a model is told that was not trained on tools, or not on any style that is known here."""
    example = parser.written([("function_name", '{"argument_name": "value"}')])
    lines = (json.dumps(tool["function"], ensure_ascii=False) for tool in tools.functions)
    return _INSTRUCTIONS.format(tools="\n".join(lines), example=example)


def _plain(message: Message, where: str, dialect: Dialect) -> Plain:
    """What OpenAI now calls developer is the system of templates; arguments are objects there, not JSON."""
    _check(message, where)
    plain: Plain = {
        "role": "system" if message.role == "developer" else message.role,
        "content": "" if message.content is None else message.content,
    }
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = dialect.parser.call_id(message.tool_call_id)
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": dialect.parser.call_id(call.id), "type": "function", "function": _function(call, f"{where}.{place}")}
            for place, call in ((f"tool_calls[{n}]", call) for n, call in enumerate(message.tool_calls))
        ]
    return plain


def _check(message: Message, where: str) -> None:
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(f"'{where}.content' is required.", param=f"{where}.content")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{where} has 'tool_calls', which only an assistant has.", param=f"{where}.tool_calls")
    if (message.tool_call_id is None) == (message.role == "tool"):
        raise InvalidRequest(
            f"'{where}.tool_call_id' is required in a message of a tool, and in no other.",
            param=f"{where}.tool_call_id",
        )


def _function(call: ToolCall, where: str) -> Plain:
    """The called function with its arguments as an object. An empty text means none, as OpenAI's models write it."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"'{where}.function.arguments' is not a JSON object: {error}.", param=f"{where}.function.arguments"
        ) from None
    return {"name": call.function.name, "arguments": arguments}


def _in_words(messages: Iterable[Plain], parser: type[Parser]) -> list[Plain]:
    """Calls as text of the parser's style, and results, those in a row together, as a user's words."""
    told: list[Plain] = []
    follows = False
    for message in messages:
        if message["role"] == "tool":
            result = _parts("<tool_response>") + _parts(message["content"]) + _parts("</tool_response>")
            told[-1:] = [_user(told[-1]["content"] + result)] if follows else [*told[-1:], _user(result)]
        elif calls := message.get("tool_calls"):
            functions = [(call["function"]["name"], json.dumps(call["function"]["arguments"])) for call in calls]
            told.append(
                {"role": "assistant", "content": _parts(message["content"]) + _parts(parser.written(functions))}
            )
        else:
            told.append(message)
        follows = message["role"] == "tool"
    return told


def _with_instructions(messages: list[Plain], text: str, dialect: Dialect) -> list[Plain]:
    """After the system text that there is, or as one of its own, or before the first user's words."""
    role = "system" if dialect.takes_system else "user"
    place = next((index for index, message in enumerate(messages) if message["role"] == role), None)
    if dialect.takes_system and place != 0:
        return [{"role": "system", "content": text}, *messages]
    if place is None:
        return [_user(_parts(text)), *messages]
    content = _parts(messages[place]["content"])
    content = content + _parts("\n" + text) if dialect.takes_system else _parts(text + "\n") + content
    return [*messages[:place], {**messages[place], "content": content}, *messages[place + 1 :]]


def _user(parts: list[Plain]) -> Plain:
    return {"role": "user", "content": parts}


def _parts(content: str | list[Plain]) -> list[Plain]:
    """Content as parts, which are joined with a line break between."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
