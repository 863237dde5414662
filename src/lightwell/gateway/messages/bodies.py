"""Bodies of the Messages API. What else exists there, and what becomes of it, is decided in ``read_messages``."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from lightwell.errors import UnsupportedParameter
from lightwell.gateway.bodies import Count, Share, Truncation
from lightwell.gateway.parameters import read_body

Blocks = list[dict[str, Any]]

# Name: the values, beside null, that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
_ACCEPTED = ("cache_control", "diagnostics", "inference_geo", "user_profile_id", "workspace_id", "betas")


class Turn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Thinking(msgspec.Struct):
    type: str


class CountBody(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    model: str | None = None
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    system: str | Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True):
    """``seed`` and ``truncation`` are ours."""

    max_tokens: Count
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    service_tier: str | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63))] | None = None
    truncation: Truncation | None = None


Body = TypeVar("Body", bound=CountBody)


def read_messages(data: bytes, kind: type[Body]) -> tuple[Body, dict[str, str]]:
    """The body, and the headers that warn about ignored fields. Raises InvalidRequest, UnsupportedParameter."""
    body, warning = read_body(data, kind, refused=_REFUSED, accepted=_ACCEPTED)
    if body.thinking is not None and body.thinking.type != "disabled":
        raise UnsupportedParameter("'thinking' is not supported by this server.", param="thinking.type")
    return body, warning
