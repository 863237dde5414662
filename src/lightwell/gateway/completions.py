"""POST /v1/completions: one prompt or several, as text or as token ids; one choice for each."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import CompletionBody, TokenPrompt
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import read_body
from lightwell.gateway.plan import answer_length, plan
from lightwell.gateway.prompts import check_tokens, encode_text
from lightwell.gateway.reply import reply
from lightwell.gateway.shapes import CompletionShape
from lightwell.units import Tokens

_DEFAULT_LENGTH: Tokens = 16  # OpenAI's


def completion_routes(gateway: Gateway) -> list[Route]:
    async def completions(request: Request) -> Response:
        body, warning = read_body(await request.body(), CompletionBody)
        generation = await _plan(gateway, body)
        shape = CompletionShape(logprobs=body.logprobs is not None)
        return await reply(gateway, request, generation, shape, warning, stream=bool(body.stream))

    return [Route("/v1/completions", completions, methods=["POST"])]


async def _plan(gateway: Gateway, body: CompletionBody) -> Generation:
    gateway.known_model(body.model)
    gateway.admit()
    prompts = [await _encode(gateway, prompt, body) for prompt in _prompts(body.prompt)]
    lengths = [answer_length(gateway, prompt, body.max_tokens, _DEFAULT_LENGTH, "prompt") for prompt in prompts]
    return plan(gateway, body, "cmpl", prompts, lengths, body.logprobs)


def _prompts(prompt: str | list[str | int | TokenPrompt]) -> list[str | TokenPrompt]:
    """A list of integers is one prompt; any other list holds one prompt in each place."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    prompts = [item for item in prompt if not isinstance(item, int)]
    if ids or not prompts:
        raise InvalidRequest(
            "Invalid value for 'prompt': give a text, a list of texts, a list of token ids, or a list of such lists.",
            param="prompt",
        )
    return prompts


async def _encode(gateway: Gateway, prompt: str | TokenPrompt, body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        return await encode_text(gateway, prompt, add_special=body.add_special_tokens is not False)
    return check_tokens(gateway, prompt, "prompt")
