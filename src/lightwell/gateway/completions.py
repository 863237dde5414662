"""POST /v1/completions: one prompt or several, as text or as token ids."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest
from lightwell.gateway.bodies import CompletionBody, TokenPrompt
from lightwell.gateway.caller import Caller, caller_of
from lightwell.gateway.echo import Echo
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import read_body
from lightwell.gateway.plan import Prompt, answer_length, plan
from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.prompts import check_tokens, encode_text, prompts_of
from lightwell.gateway.reply import reply
from lightwell.gateway.served import ServedModel
from lightwell.gateway.shapes import CompletionShape
from lightwell.gateway.structured import checked_grammar
from lightwell.units import Tokens

_DEFAULT_LENGTH: Tokens = 16  # OpenAI's
_MOST_SEQUENCES = 1024  # of one request, which would otherwise fill the queue for everybody


def completion_routes(gateway: Gateway) -> list[Route]:
    async def completions(request: Request) -> Response:
        body, warning = read_body(await request.body(), CompletionBody)
        caller = caller_of(request)
        model = gateway.find_model(body.model, caller)
        gateway.admit(model)
        generation = await plan_completion(model, caller, body)
        return await reply(gateway, request, generation, completion_shape(body), warning, stream=bool(body.stream))

    return [Route("/v1/completions", completions, methods=["POST"])]


def completion_shape(body: CompletionBody) -> CompletionShape:
    return CompletionShape(
        logprobs=body.logprobs is not None,
        token_ids=bool(body.return_token_ids),
        ids_as_names=bool(body.return_tokens_as_token_ids),
    )


async def plan_completion(
    model: ServedModel,
    caller: Caller,
    body: CompletionBody,
    api: str = "completion",
    default_length: Tokens | None = _DEFAULT_LENGTH,
) -> Generation:
    """``default_length``: of an answer for which none is asked, None for the room left."""
    _check(body)
    asked = prompts_of(body.prompt, "prompt")
    _check_sequences(len(asked), body)
    prompts = [await _prompt(model, prompt, body, default_length) for prompt in asked]
    grammar = await checked_grammar(model, body)
    return plan(model, caller, body, api, prompts, body.logprobs, body.best_of, grammar=grammar)


def _check(body: CompletionBody) -> None:
    """Raises InvalidRequest for values that do not go together."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("'max_tokens' is 0: that leaves nothing to answer without 'echo'.", param="max_tokens")
    choices = body.n or 1
    if body.best_of and body.best_of < choices:
        raise InvalidRequest(f"'best_of' is {body.best_of}, which is less than 'n' = {choices}.", param="best_of")
    if body.stream and (body.best_of or 0) > choices:
        raise InvalidRequest(
            "A stream cannot show the best of several answers: they are known only at the end.", param="best_of"
        )


def _check_sequences(prompts: int, body: CompletionBody) -> None:
    candidates = body.best_of or body.n or 1
    if prompts * candidates > _MOST_SEQUENCES:
        raise InvalidRequest(
            f"{prompts} prompts with {candidates} answers each make {prompts * candidates} sequences; one request may "
            f"have {_MOST_SEQUENCES}. Send several requests, or a batch.",
            param="prompt",
        )


async def _prompt(
    model: ServedModel, prompt: str | TokenPrompt, body: CompletionBody, default: Tokens | None
) -> Prompt:
    tokens = await _encode(model, prompt, body)
    length = answer_length(model, tokens, body.max_tokens, default, "prompt")
    if not body.echo:
        return Prompt(tokens, length)
    echo = Echo(
        model.tokenizer,
        tokens,
        prompt if isinstance(prompt, str) else None,
        prompt_scores=None if body.logprobs is None else PromptScores(model.tokenizer, tokens, body.logprobs),
        skip_special=body.skip_special_tokens is not False,
    )
    return Prompt(tokens, length, echo)


async def _encode(model: ServedModel, prompt: str | TokenPrompt, body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        return await encode_text(model, prompt, add_special=body.add_special_tokens is not False)
    return check_tokens(model, prompt, "prompt")
