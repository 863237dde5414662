"""From what a client wrote to the token ids of a prompt. Long texts are encoded in a thread, beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import Message, TokenPrompt
from lightwell.gateway.served import ServedModel
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.conversation import for_template
from lightwell.text.chat import encode_chat

_LONG_CHARACTERS = 8192  # encoding this many takes some milliseconds, in which no stream would get its token
_OURS = frozenset({"tokenizer", "template", "messages", "tools", "add_generation_prompt"})


def prompts_of(prompt: str | list[str | int | TokenPrompt], param: str) -> list[str | TokenPrompt]:
    """A list of integers is one prompt; any other list holds one prompt in each place."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    prompts = [item for item in prompt if not isinstance(item, int)]
    if ids or not prompts:
        raise InvalidRequest(
            f"Invalid value for {param!r}: give a text, a list of texts, a list of token ids, or a list of such lists.",
            param=param,
        )
    return prompts


async def encode_text(model: ServedModel, text: str, *, add_special: bool) -> list[int]:
    """Token ids of a raw prompt, with the model's BOS in front if ``add_special``."""
    tokenizer = model.tokenizer

    def encode() -> list[int]:
        return tokenizer.encode_prompt(text) if add_special else tokenizer.encode(text, special=True)

    return await _beside_the_loop_if(len(text) > _LONG_CHARACTERS, encode)


async def encode_messages(
    model: ServedModel,
    messages: list[Message],
    add_generation_prompt: bool | None,
    variables: dict[str, Any] | None,
    tools: Tools | None = None,
    *,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of a conversation through the model's chat template, which also reads ``variables``. A template that
    does not know tools gets them in words (tools/conversation.py).

    Raises InvalidRequest where the template refuses it, NoChatTemplate where there is none.
    """
    if continue_final_message:
        _check_continues(messages, add_generation_prompt)
    more = variables or {}
    if taken := _OURS & more.keys():
        raise InvalidRequest(
            f"{min(taken)!r} is not for the template: it has its own place.", param="chat_template_kwargs"
        )

    dialect = model.dialect
    plain = for_template(messages, tools, dialect)

    def encode() -> list[int]:
        return encode_chat(
            model.tokenizer,
            model.template,
            plain,
            tools=tools.functions if tools is not None and dialect.native else None,
            add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
            continue_final_message=continue_final_message,
            **more,
        )

    return await _beside_the_loop_if(sum(map(_characters, messages)) > _LONG_CHARACTERS, encode)


def _check_continues(messages: list[Message], add_generation_prompt: bool | None) -> None:
    if add_generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' goes on with the last message, 'add_generation_prompt' begins a new one: "
            "give one of them.",
            param="continue_final_message",
        )
    if messages[-1].role != "assistant":
        raise InvalidRequest(
            f"'continue_final_message' needs a last message of the assistant; this one is of the {messages[-1].role}.",
            param="continue_final_message",
        )
    if messages[-1].tool_calls:
        raise InvalidRequest(
            "'continue_final_message' cannot go on with a last message that calls tools: give their results.",
            param="continue_final_message",
        )


def check_tokens(model: ServedModel, tokens: TokenPrompt, param: str) -> list[int]:
    """The ids themselves. Raises InvalidRequest for one that the model does not have."""
    end = model.tokenizer.vocab_size
    if tokens and not (min(tokens) >= 0 and max(tokens) < end):
        wrong = next(token for token in tokens if not 0 <= token < end)
        raise InvalidRequest(f"Token id {wrong} is not in the vocabulary: ids go from 0 to {end - 1}.", param=param)
    return tokens


async def _beside_the_loop_if(long: bool, encode: Callable[[], list[int]]) -> list[int]:
    return await asyncio.to_thread(encode) if long else encode()


def _characters(message: Message) -> int:
    """About how long the message is."""
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    if isinstance(message.content, str):
        return len(message.content) + calls
    return sum(len(str(part)) for part in message.content or ()) + calls
