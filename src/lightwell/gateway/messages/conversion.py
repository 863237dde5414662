"""From a body of the Messages API to a chat in our own words. A complaint names the place in what the client sent."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import CalledFunction, ChatBody, Message, ToolCall
from lightwell.gateway.messages.bodies import CountBody, MessagesBody, Turn

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(body: CountBody) -> ChatBody:
    """The conversation, its tools and its form; of a MessagesBody also how to sample. A last turn of the assistant is
    one to go on with."""
    choice = body.tool_choice or {}
    chat = ChatBody(
        model=body.model,
        messages=[*_system(body), *(message for n, turn in enumerate(body.messages) for message in _turn(turn, n))],
        continue_final_message=body.messages[-1].role == "assistant",
        tools=[_tool(tool, f"tools[{n}]") for n, tool in enumerate(body.tools or ())] or None,
        tool_choice=_tool_choice(choice) if choice else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        response_format=_form(body.output_config or {}),
    )
    if not isinstance(body, MessagesBody):
        return chat
    return msgspec.structs.replace(
        chat,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        truncation=body.truncation,
    )


def _system(body: CountBody) -> list[Message]:
    if not body.system:
        return []
    if isinstance(body.system, str):
        return [Message("system", body.system)]
    return [Message("system", [_text(block, f"system[{n}]") for n, block in enumerate(body.system)])]


def _turn(turn: Turn, index: int) -> Iterator[Message]:
    """Results of tools are messages of their own here, and come before the words of the same turn."""
    if isinstance(turn.content, str):
        yield Message(turn.role, turn.content)
        return
    texts, calls = [], []
    for n, block in enumerate(turn.content):
        where = f"messages[{index}].content[{n}]"
        match turn.role, block.get("type"):
            case "assistant", "tool_use":
                calls.append(_call(block, where))
            case "user", "tool_result":
                yield _result(block, where)
            case _:
                texts.append(_text(block, where))
    if texts or calls:
        yield Message(turn.role, cast(Any, texts) or None, tool_calls=calls or None)


def _text(block: dict[str, Any], where: str) -> dict[str, Any]:
    kind = _field(block, "type", where)
    if kind != "text":
        raise UnsupportedParameter(f"{where} is of type {kind!r}, which is not supported here.", param=f"{where}.type")
    return {"type": "text", "text": _field(block, "text", where)}


def _call(block: dict[str, Any], where: str) -> ToolCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"'{where}.input' must be an object.", param=f"{where}.input")
    function = CalledFunction(_field(block, "name", where), msgspec.json.encode(arguments).decode())
    return ToolCall(_field(block, "id", where), function)


def _result(block: dict[str, Any], where: str) -> Message:
    content = block.get("content") or ""
    if isinstance(content, list):
        content = [_text(part, f"{where}.content[{n}]") for n, part in enumerate(content) if _is_object(part, where)]
    elif not isinstance(content, str):
        raise InvalidRequest(f"'{where}.content' must be a text or a list of blocks.", param=f"{where}.content")
    return Message("tool", content, tool_call_id=_field(block, "tool_use_id", where))


def _is_object(part: Any, where: str) -> bool:
    if not isinstance(part, dict):
        raise InvalidRequest(f"'{where}.content' must be a text or a list of blocks.", param=f"{where}.content")
    return True


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        kind = tool["type"]
        raise UnsupportedParameter(f"{where} is of type {kind!r}: only tools of your own are served.", param=where)
    function = {"name": _field(tool, "name", where), "parameters": tool.get("input_schema")}
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"type": "function", "function": function | described}


def _tool_choice(choice: dict[str, Any]) -> str | dict[str, Any]:
    kind = _field(choice, "type", "tool_choice")
    if kind == "tool":
        return {"type": "function", "function": {"name": _field(choice, "name", "tool_choice")}}
    if kind not in _CHOICES:
        raise InvalidRequest(f"'tool_choice.type' is {kind!r}: give auto, any, tool or none.", param="tool_choice.type")
    return _CHOICES[kind]


def _form(config: dict[str, Any]) -> dict[str, Any] | None:
    """``output_config``: only a format is served of it."""
    for name, value in config.items():
        if name != "format" and value is not None:
            param = f"output_config.{name}"
            raise UnsupportedParameter(f"{param!r} is not supported by this server.", param=param)
    form = config.get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise InvalidRequest("'output_config.format' must be of type json_schema.", param="output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema"), "strict": True}}


def _field(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{where}.{name}' is required and must be a text.", param=f"{where}.{name}")
    return value
