"""Parameters: every request field known from the OpenAI API and from vLLM's additions is served, accepted or refused.

Served fields are those of the structs in bodies.py. Accepted ones do not change an answer. The rest is refused with
400 unless it has a value that asks for nothing. Fields that nobody knows are ignored, and listed in a header.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter

Body = TypeVar("Body", bound=msgspec.Struct)
WARNING_HEADER = "x-lightwell-warning"
_MAX_LISTED = 20

ACCEPTED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "safety_identifier",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "include_reasoning",
    }
)

# Name: the values, beside null, that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "best_of": (0, 1),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none", "medium"),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    # vLLM
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "structural_tag": (),
    "guided_decoding_backend": ("auto", "guidance"),
    "logits_processors": ([],),
    "spaces_between_special_tokens": (True,),
    "request_id": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    # What other servers call things that would change or constrain the answer
    "grammar": ("",),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "n_predict": (-1,),
    "num_ctx": (),
    "options": ({},),
}
_REFUSED_WITHIN: dict[str, dict[str, tuple[Any, ...]]] = {"stream_options": {"continuous_usage_stats": (False,)}}
_ACCEPTED_WITHIN = {"stream_options": {"include_usage", "include_obfuscation"}}
_ACCEPTED_IN_MESSAGE = {"role", "content", "name", "tool_calls", "tool_call_id"}
_REFUSED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "function_call": (),
    "audio": (),
    "refusal": (),
}


def read_body(
    data: bytes,
    kind: type[Body],
    refused: Mapping[str, tuple[Any, ...]] = REFUSED,
    accepted: Iterable[str] = ACCEPTED,
) -> tuple[Body, dict[str, str]]:
    """The body as a struct, and the response headers that warn about ignored fields.

    Raises InvalidRequest naming the parameter with a wrong type or value, UnsupportedParameter for one not served.
    """
    fields = _parse(data)
    served = {field.encode_name for field in msgspec.structs.fields(kind)}
    ignored = _screen(fields, "", {name: refused[name] for name in refused.keys() - served}, {*served, *accepted})
    ignored += _screen_nested(fields)
    return _convert(fields, kind), _warning(ignored)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return fields


def _screen(
    fields: Mapping[str, Any], path: str, refused: Mapping[str, tuple[Any, ...]], known: Iterable[str]
) -> list[str]:
    """Refuse what is not served; return the names that nobody knows."""
    for name, value in fields.items():
        if name in refused and value is not None and not _asks_nothing(value, refused[name]):
            param = f"{path}{name}"
            asked = "" if not refused[name] else f" other than {msgspec.json.encode(refused[name][-1]).decode()}"
            raise UnsupportedParameter(f"{param!r}{asked} is not supported by this server.", param=param)
    return [f"{path}{name}" for name in fields if name not in known and name not in refused]


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    """Equality as JSON has it: true is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in harmless)


def _screen_nested(fields: dict[str, Any]) -> list[str]:
    ignored: list[str] = []
    for name, refused in _REFUSED_WITHIN.items():
        if isinstance(value := fields.get(name), dict):
            ignored += _screen(value, f"{name}.", refused, _ACCEPTED_WITHIN[name])
    messages = fields.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if isinstance(message, dict):
            ignored += _screen(message, f"messages[{index}].", _REFUSED_IN_MESSAGE, _ACCEPTED_IN_MESSAGE)
            if message.get("role") == "function":
                param = f"messages[{index}].role"
                raise UnsupportedParameter(
                    "Messages of the role 'function' are not supported by this server: use 'tool'.", param=param
                )
    return ignored


def _convert(fields: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


_WHERE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<param>.*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*?)`(?: - at `\$\.?(?P<path>.*)`)?")


def _invalid(complaint: str) -> InvalidRequest:
    """msgspec's complaint, as ours: it names the parameter."""
    if missing := _MISSING.fullmatch(complaint):
        param = ".".join(filter(None, (missing["path"], missing["name"])))
        return InvalidRequest(f"{param!r} is required.", param=param)
    if where := _WHERE.fullmatch(complaint):
        param = where["param"].removesuffix("[...]")  # a value within an object with keys of the client's own
        return InvalidRequest(f"Invalid value for {param!r}: {where['what']}.", param=param)
    return InvalidRequest(f"Invalid request body: {complaint}.")


def _warning(ignored: list[str]) -> dict[str, str]:
    if not ignored:
        return {}
    # The names are the client's: nothing in them may break a header.
    names = [name[:64].encode("unicode_escape").decode() for name in ignored[:_MAX_LISTED]]
    names += [f"and {len(ignored) - _MAX_LISTED} more"] if len(ignored) > _MAX_LISTED else []
    return {WARNING_HEADER: f"unknown parameters ignored: {', '.join(names)}"}
