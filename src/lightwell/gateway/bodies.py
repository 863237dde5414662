"""Bodies of requests: their fields, types and ranges, as msgspec structs. ``null`` means the default everywhere.

Which other fields exist, and what becomes of them, is in parameters.py.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

_WIRE_INTEGER = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=128)]
Candidates = Annotated[int, msgspec.Meta(ge=0, le=20)]
TokenPrompt: TypeAlias = list[int]
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Truncation: TypeAlias = Literal["refuse", "drop_oldest", "summarize"]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    n: Choices | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63))] | None = None
    stop: str | list[str] | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[int, _WIRE_INTEGER] | None = None
    cache_salt: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    prompt_logprobs: Candidates | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CalledFunction(msgspec.Struct):
    """``arguments`` are JSON, as the model wrote them."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    """What each role has is checked in tools/conversation.py; parts of content where they are joined (text/chat.py)."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    truncation: Truncation | None = None  # what to do where the conversation does not fit the context window
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Candidates | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[str | int | TokenPrompt]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None  # 0 only to have the prompt echoed
    best_of: Annotated[int, msgspec.Meta(ge=0, le=128)] | None = None  # 0 means the default, as in OpenAI's schema
    echo: bool | None = None
    logprobs: Candidates | None = None
    add_special_tokens: bool | None = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """``dimensions`` can only be what the model's vectors have: they are not cut. ``pooling`` is ours."""

    input: str | list[str | int | TokenPrompt]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    pooling: Literal["last", "mean"] | None = None
    priority: Annotated[int, _WIRE_INTEGER] | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``prompt``, where ``add_special_tokens`` defaults to true, or ``messages`` with the fields of templates."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]
