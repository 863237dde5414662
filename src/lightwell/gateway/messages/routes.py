"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import LightwellError
from lightwell.gateway.answer import Delta
from lightwell.gateway.caller import caller_of
from lightwell.gateway.chat import plan_chat
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.failures import error_body
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.messages.bodies import CountBody, MessagesBody, read_messages
from lightwell.gateway.messages.conversion import as_chat
from lightwell.gateway.messages.shape import event, events, message
from lightwell.gateway.prompts import encode_messages
from lightwell.gateway.reply import SEED_HEADER, json_response
from lightwell.gateway.sse import stream_response
from lightwell.gateway.stages import answered
from lightwell.gateway.tools.asked import tools_of

PATH = "/v1/messages"
_PING = event({"type": "ping"})


def message_routes(gateway: Gateway) -> list[Route]:
    async def messages(request: Request) -> Response:
        body, warning = read_messages(await request.body(), MessagesBody)
        caller = caller_of(request)
        model = gateway.find_model(body.model, caller)
        gateway.admit(model)
        planned = plan_chat(gateway, model, caller, as_chat(body), "messages")
        generation = await unless_gone(request.receive, planned)
        generation.headers |= warning | {SEED_HEADER: str(generation.answers[0].request.sampling.seed)}
        deltas: AsyncGenerator[list[Delta], None] = answered(gateway, generation)
        if body.stream:
            return await stream_response(request, generation, events(generation, deltas), _error_event, ping=_PING)
        return json_response(await unless_gone(request.receive, message(generation, deltas)), generation.headers)

    async def count_tokens(request: Request) -> Response:
        body, warning = read_messages(await request.body(), CountBody)
        model, chat = gateway.find_model(body.model, caller_of(request)), as_chat(body)
        tokens = await encode_messages(
            model, chat.messages, None, None, tools_of(chat), continue_final_message=bool(chat.continue_final_message)
        )
        return json_response({"input_tokens": len(tokens)}, warning)

    return [
        Route(PATH, messages, methods=["POST"]),
        Route(f"{PATH}/count_tokens", count_tokens, methods=["POST"]),
    ]


def _error_event(error: LightwellError) -> bytes:
    return event(error_body(error, PATH))
