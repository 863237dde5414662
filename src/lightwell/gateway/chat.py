"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import ChatBody
from lightwell.gateway.caller import Caller, caller_of
from lightwell.gateway.conversation import prepared
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import read_body
from lightwell.gateway.plan import Prompt, answer_length, plan
from lightwell.gateway.reply import reply
from lightwell.gateway.served import ServedModel
from lightwell.gateway.shapes import ChatShape
from lightwell.gateway.structured import checked_grammar
from lightwell.gateway.tools.asked import tools_of
from lightwell.gateway.tools.calling import calling_for
from lightwell.units import Tokens


def chat_routes(gateway: Gateway) -> list[Route]:
    async def chat_completions(request: Request) -> Response:
        body, warning = read_body(await request.body(), ChatBody)
        caller = caller_of(request)
        model = gateway.find_model(body.model, caller)
        gateway.admit(model)
        generation = await unless_gone(request.receive, plan_chat(gateway, model, caller, body))
        return await reply(gateway, request, generation, chat_shape(body), warning, stream=bool(body.stream))

    return [Route("/v1/chat/completions", chat_completions, methods=["POST"])]


def chat_shape(body: ChatBody) -> ChatShape:
    return ChatShape(
        logprobs=bool(body.logprobs),
        token_ids=bool(body.return_token_ids),
        ids_as_names=bool(body.return_tokens_as_token_ids),
    )


async def plan_chat(
    gateway: Gateway, model: ServedModel, caller: Caller, body: ChatBody, api: str = "chat"
) -> Generation:
    """From a chat in our own words, whichever API it came by, to what the engine is asked."""
    asked, logprobs, tools = _asked_length(body), _logprobs(body), tools_of(body)
    form = await checked_grammar(model, body)
    if form and tools is not None and not body.response_format:
        raise InvalidRequest("With 'tools' the form of an answer is said by 'response_format' only.", param="tools")
    calling = None if tools is None else await calling_for(model, tools, form)
    tokens, report = await prepared(gateway, model, caller, body, tools, asked)
    prompt = Prompt(tokens, answer_length(model, tokens, asked, None, "messages"))
    generation = plan(model, caller, body, api, [prompt], logprobs, calling=calling, grammar=form)
    if report is not None:
        generation.report(report)
    return generation


def _asked_length(body: ChatBody) -> Tokens | None:
    if body.max_tokens is None or body.max_completion_tokens in (None, body.max_tokens):
        return body.max_completion_tokens or body.max_tokens
    raise InvalidRequest(
        f"'max_tokens' is {body.max_tokens} and 'max_completion_tokens' is {body.max_completion_tokens}: give one.",
        param="max_tokens",
    )


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return None
