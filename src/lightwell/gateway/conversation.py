"""The conversation as the model sees it: with stored instructions, and as much of it as fits the context window."""

from collections.abc import Sequence

import msgspec

from lightwell.gateway.bodies import ChatBody, Message
from lightwell.gateway.caller import Caller
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.instructions import instructed, stored_for
from lightwell.gateway.prompts import encode_messages
from lightwell.gateway.served import ServedModel
from lightwell.gateway.summarize import summarized
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.window import ContextReport, fewest_dropped, turns, window_of, without
from lightwell.units import Tokens

_LONGEST_SUMMARY: Tokens = 256
_AROUND_SUMMARY: Tokens = 32  # its heading, and what the template writes around a message


async def prepared(
    gateway: Gateway, model: ServedModel, caller: Caller, body: ChatBody, tools: Tools | None, asked: Tokens | None
) -> tuple[list[int], ContextReport | None]:
    """The prompt's tokens, and what was done to the conversation where anything was.

    What does not fit is refused later, unless the request (or its key) says otherwise. Raises ContextLengthExceeded
    where not even the last turn fits.
    """

    async def encode(messages: Sequence[Message]) -> list[int]:
        return await encode_messages(
            model,
            list(messages),
            body.add_generation_prompt,
            body.chat_template_kwargs,
            tools,
            continue_final_message=bool(body.continue_final_message),
        )

    stored = stored_for(await gateway.instructions.rules(), caller, model)
    messages = instructed(body.messages, [text for _, text in stored], model)
    tokens, window = await encode(messages), window_of(model, asked)
    policy = body.truncation or caller.truncation or "refuse"
    report = ContextReport(policy, window.tokens, len(tokens), instructions=tuple(subject for subject, _ in stored))
    if policy == "refuse" or len(tokens) <= window.prompt:
        return tokens, report if stored else None
    summary_tokens = 0
    if policy == "drop_oldest":
        count, kept = await fewest_dropped(messages, encode, window)
    else:
        longest = min(_LONGEST_SUMMARY, window.tokens // 8)
        count, _ = await fewest_dropped(messages, encode, window.with_room_for(longest + _AROUND_SUMMARY))
        dropped = turns(messages)[:count]
        kept = await encode(await summarized(gateway, model, caller, messages, dropped, longest))
        summary_tokens = len(kept) - len(await encode(without(messages, dropped)))
    return kept, msgspec.structs.replace(
        report,
        prompt_tokens=len(kept),
        dropped_messages=sum(map(len, turns(messages)[:count])),
        dropped_tokens=len(tokens) - len(kept),
        summary_tokens=summary_tokens,
    )
