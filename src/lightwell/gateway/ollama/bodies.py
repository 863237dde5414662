"""Bodies of Ollama's API, and what they are in our own words."""

from typing import Annotated, Any, Literal

import msgspec

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import CalledFunction, ChatBody, CompletionBody, Message, Penalty, Role, Share, ToolCall
from lightwell.units import Tokens

_INTEGER = msgspec.Meta(ge=-(2**63), le=2**63 - 1)

# Name: the values, beside null, that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "context": ([],),
    "images": ([],),
    "template": ("",),
    "think": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
}
ACCEPTED = ("keep_alive",)
_LENGTHS_WITHOUT_BOUND = (-1, -2)


class Options(msgspec.Struct):
    """Sampling as everywhere here: what is not given has OpenAI's default, not Ollama's."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Annotated[int, _INTEGER] | None = None
    num_predict: Annotated[int, msgspec.Meta(ge=-2)] | None = None
    num_ctx: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stop: str | list[str] | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    def check_window(self, window: Tokens) -> None:
        """Raises UnsupportedParameter where more is counted on than there is. A smaller number changes nothing: what
        does not fit is refused here, and not cut."""
        if self.num_ctx is not None and self.num_ctx > window:
            raise UnsupportedParameter(
                f"'options.num_ctx' is {self.num_ctx}, but the context window holds {window} tokens.",
                param="options.num_ctx",
            )

    def sampling(self) -> dict[str, Any]:
        """As fields of our bodies."""
        length = self.num_predict
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stop,
            "max_tokens": None if length in _LENGTHS_WITHOUT_BOUND else length,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class _Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Turn(msgspec.Struct):
    role: Role
    content: str | None = None
    images: list[str] | None = None
    tool_calls: list[_Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaBody(msgspec.Struct, kw_only=True):
    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options = msgspec.field(default_factory=Options)


class OllamaChatBody(OllamaBody, kw_only=True):
    messages: list[_Turn] = []
    tools: list[dict[str, Any]] | None = None


class GenerateBody(OllamaBody, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool = False


def as_chat(body: OllamaChatBody) -> ChatBody:
    last = body.messages[-1]
    return ChatBody(
        messages=_messages(body.messages),
        continue_final_message=last.role == "assistant" and not last.tool_calls,
        tools=body.tools or None,
        **_common(body),
    )


def as_prompt_chat(body: GenerateBody) -> ChatBody:
    system = [Message("system", body.system)] if body.system else []
    return ChatBody(messages=[*system, Message("user", body.prompt)], **_common(body))


def as_completion(body: GenerateBody) -> CompletionBody:
    """A raw prompt. Its length has no default in Ollama."""
    if body.system:
        raise InvalidRequest("'system' is not for a raw prompt: write it into the prompt.", param="system")
    return CompletionBody(prompt=body.prompt, **_common(body))


def _common(body: OllamaBody) -> dict[str, Any]:
    form = body.format or None
    if form == "json":
        form = {"type": "json_object"}
    elif form is not None:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
    return body.options.sampling() | {"response_format": form}


def _messages(turns: list[_Turn]) -> list[Message]:
    """Calls get ids, and results those of the calls before them in order, where they come without."""
    messages: list[Message] = []
    waiting: list[str] = []
    for place, turn in enumerate(turns):
        if turn.images:
            where = f"messages[{place}].images"
            raise UnsupportedParameter(f"'{where}' is not supported by this server.", param=where)
        calls = [
            ToolCall(call.id or f"call_{place}_{n}", CalledFunction(call.function.name, _json(call.function.arguments)))
            for n, call in enumerate(turn.tool_calls or ())
        ]
        waiting += [call.id for call in calls]
        result = turn.tool_call_id
        if turn.role == "tool" and result is None:
            result = waiting[0] if waiting else "call"
        if result in waiting:
            waiting.remove(result)
        messages.append(Message(turn.role, turn.content, tool_calls=calls or None, tool_call_id=result))
    return messages


def _json(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()
