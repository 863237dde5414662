"""Bodies of the Responses API. Fields that are not served are refused by name, as everywhere (parameters.py)."""

from typing import Annotated, Any, Literal

import msgspec

from lightwell.gateway.bodies import Candidates, Count, Share

Items = list[dict[str, Any]]
LOGPROBS = "message.output_text.logprobs"

# Name: the values, beside null, that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "access_programs": ([],),
    "reasoning": ({}, {"effort": "none"}, {"effort": None, "summary": None}),
}
ACCEPTED = (
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
)


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class InputBody(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    model: str | None = None
    input: str | Items
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Items | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled", "summarize"] | None = None  # the last is ours


class ResponsesBody(InputBody, kw_only=True):
    """``seed``, ``top_k`` and ``min_p`` are ours."""

    max_output_tokens: Count | None = None
    metadata: Annotated[dict[str, str], msgspec.Meta(max_length=16)] | None = None
    store: bool = False
    stream: bool = False
    include: list[str] = []
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_logprobs: Candidates | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63))] | None = None
