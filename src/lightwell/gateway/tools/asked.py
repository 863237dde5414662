"""Tools: the functions that a request offers to the model, and what it may or must call. Checked here, by place."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import ChatBody

S = TypeVar("S", bound=msgspec.Struct)
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # OpenAI's, and the dots that people have in theirs
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tools:
    """``functions`` are as templates know them, ``schemas`` the parameters of each by its name. One of ``forced`` has
    to be called; where it is empty the model decides. ``most`` bounds the calls."""

    functions: list[dict[str, Any]]
    schemas: dict[str, Mapping[str, Any]]
    forced: tuple[str, ...] = ()
    most: int | None = None


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: Literal["function"]
    function: _Named


def tools_of(body: ChatBody) -> Tools | None:
    """What the request offers; None where it offers nothing, or wants no call. Raises InvalidRequest naming the place.

    Without ``tool_choice`` the model decides. A named function is called once, others as often as ``most`` allows.
    """
    offered = offered_tools(body.tools)
    choice = body.tool_choice or "auto"
    if choice == "none" or (offered is None and choice == "auto"):
        return None
    if offered is None:
        raise InvalidRequest("'tool_choice' needs 'tools' to choose from.", param="tool_choice")
    most = 1 if body.parallel_tool_calls is False else None
    match choice:
        case "auto":
            return Tools(offered.functions, offered.schemas, most=most)
        case "required":
            return Tools(offered.functions, offered.schemas, tuple(offered.schemas), most)
        case {}:
            return Tools(offered.functions, offered.schemas, (_named(choice, offered),), 1)
        case _:
            raise InvalidRequest(
                f"'tool_choice' is {choice!r}: give 'none', 'auto', 'required', or the function to call.",
                param="tool_choice",
            )


def offered_tools(tools: list[dict[str, Any]] | None) -> Tools | None:
    """The tools for the model to choose from; None for none. Raises InvalidRequest, UnsupportedParameter."""
    offered = Tools([], {})
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        function = _function(tool, where)
        if function.name in offered.schemas:
            raise InvalidRequest(
                f"Two tools have the name {function.name!r}: give each its own.", param=f"{where}.function.name"
            )
        offered.schemas[function.name] = schema = _object_schema(function.parameters, f"{where}.function.parameters")
        described = {} if function.description is None else {"description": function.description}
        offered.functions.append(
            {"type": "function", "function": {"name": function.name, **described, "parameters": schema}}
        )
    return offered if offered.schemas else None


def _function(tool: dict[str, Any], where: str) -> _Function:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedParameter(
            f"{where} is of type {kind!r}: only 'function' is served here.", param=f"{where}.type"
        )
    function = _converted(tool, _Tool, where).function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{where}.function.name is {function.name!r}: a name has 1 to 64 letters, digits, '_', '-' and '.'.",
            param=f"{where}.function.name",
        )
    return function


def _object_schema(parameters: Mapping[str, Any] | None, where: str) -> Mapping[str, Any]:
    """Arguments are an object, said or not; no parameters at all mean none."""
    if parameters is None:
        return _NO_PARAMETERS
    if parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where} is of type {parameters['type']!r}: the arguments of a call are an 'object'.", param=where
        )
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _named(choice: dict[str, Any], offered: Tools) -> str:
    if choice.get("type") == "allowed_tools":
        raise UnsupportedParameter(
            "'tool_choice' of type 'allowed_tools' is not supported by this server: offer only those tools.",
            param="tool_choice",
        )
    name = _converted(choice, _Choice, "tool_choice").function.name
    if name not in offered.schemas:
        raise InvalidRequest(
            f"'tool_choice' names the function {name!r}, which is not among the tools: {', '.join(offered.schemas)}.",
            param="tool_choice",
        )
    return name


def _converted(value: dict[str, Any], kind: type[S], where: str) -> S:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).removesuffix("`").partition(" - at `$")
        raise InvalidRequest(f"Invalid value for '{where}{path}': {what}.", param=f"{where}{path}") from None
