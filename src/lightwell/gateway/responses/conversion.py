"""From items of the Responses API to a chat in our own words. A complaint names the place in what the client sent."""

from typing import Any, Literal, cast

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import CalledFunction, ChatBody, Message, Role, ToolCall, Truncation
from lightwell.gateway.responses.bodies import LOGPROBS, InputBody, Items, ResponsesBody

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_TRUNCATIONS: dict[str, Truncation] = {"auto": "drop_oldest", "disabled": "refuse", "summarize": "summarize"}


def as_chat(body: InputBody, history: Items) -> ChatBody:
    """``history``: the items of the responses before, the oldest first. Instructions are only those of this request."""
    system = [Message("system", body.instructions)] if body.instructions else []
    chat = ChatBody(
        model=body.model,
        messages=[*system, *_messages(history, "history"), *_messages(input_items(body), "input")],
        tools=[_tool(tool, f"tools[{n}]") for n, tool in enumerate(body.tools or ())] or None,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_form(body),
        truncation=None if body.truncation is None else _TRUNCATIONS[body.truncation],
    )
    if not isinstance(body, ResponsesBody):
        return chat
    logprobs = LOGPROBS in body.include
    return msgspec.structs.replace(
        chat,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
    )


def input_items(body: InputBody) -> Items:
    """The input as items, whichever way it was written."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": body.input}]}]
    if not body.input:
        raise InvalidRequest("'input' is empty: give a text or at least one item.", param="input")
    return body.input


def check_include(body: ResponsesBody) -> None:
    """Raises UnsupportedParameter for what this server has nothing of to include, InvalidRequest."""
    for name in body.include:
        if name != LOGPROBS:
            raise UnsupportedParameter(f"'include' has {name!r}: only {LOGPROBS!r} is served.", param="include")
    if body.top_logprobs is not None and LOGPROBS not in body.include:
        raise InvalidRequest(f"'top_logprobs' needs {LOGPROBS!r} in 'include'.", param="top_logprobs")


def _messages(items: Items, where: str) -> list[Message]:
    """Calls in a row are one turn of the assistant."""
    messages: list[Message] = []
    for n, item in enumerate(items):
        place = f"{where}[{n}]"
        match item.get("type", "message"):
            case "message":
                messages.append(_message(item, place))
            case "function_call":
                call = ToolCall(_field(item, "call_id", place), _called(item, place))
                last = messages[-1] if messages else None
                if last is not None and last.role == "assistant":
                    messages[-1] = msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or ()), call])
                else:
                    messages.append(Message("assistant", None, tool_calls=[call]))
            case "function_call_output":
                output = _content(item.get("output"), f"{place}.output")
                messages.append(Message("tool", output, tool_call_id=_field(item, "call_id", place)))
            case kind:
                raise UnsupportedParameter(
                    f"{place} is of type {str(kind)[:50]!r}, which is not supported here.", param=f"{place}.type"
                )
    return messages


def _message(item: dict[str, Any], place: str) -> Message:
    role = _field(item, "role", place)
    if role not in _ROLES:
        raise InvalidRequest(
            f"'{place}.role' is {role[:50]!r}: give one of {', '.join(_ROLES)}.", param=f"{place}.role"
        )
    return Message(cast(Role, role), _content(item.get("content"), f"{place}.content"))


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequest(f"'{place}' must be a text or a list of parts.", param=place)
    return [_part(part, f"{place}[{n}]") for n, part in enumerate(content)]


def _part(part: dict[str, Any], place: str) -> dict[str, Any]:
    kind = _field(part, "type", place)
    if kind not in _TEXTS:
        raise UnsupportedParameter(f"{place} is of type {kind[:50]!r}: only texts are served.", param=f"{place}.type")
    return {"type": "text", "text": _field(part, "text", place)}


def _called(item: dict[str, Any], place: str) -> CalledFunction:
    return CalledFunction(_field(item, "name", place), _field(item, "arguments", place))


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    kind = _field(tool, "type", place)
    if kind != "function":
        raise UnsupportedParameter(
            f"{place} is of type {kind[:50]!r}: only functions of your own are served.", param=f"{place}.type"
        )
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": _field(choice, "name", "tool_choice")}}
    return choice


def _form(body: InputBody) -> dict[str, Any] | None:
    form = None if body.text is None else body.text.format
    kind: Literal["text"] | Any = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind != "json_schema":
        return form
    inner = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
    return {"type": "json_schema", "json_schema": inner}


def _field(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{place}.{name}' is required and must be a text.", param=f"{place}.{name}")
    return value
