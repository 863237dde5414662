"""POST /tokenize and /detokenize, in vLLM's shapes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, UnsupportedParameter
from lightwell.gateway.bodies import DetokenizeBody, TokenizeBody
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.parameters import read_body
from lightwell.gateway.prompts import check_tokens, encode_messages, encode_text
from lightwell.gateway.reply import json_response
from lightwell.gateway.served import ServedModel
from lightwell.gateway.shapes import token_name
from lightwell.gateway.tools.asked import offered_tools


def token_routes(gateway: Gateway) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        body, warning = read_body(await request.body(), TokenizeBody)
        model = gateway.find_model(body.model, caller_of(request))
        return json_response(_description(model, await _encode(model, body), body), warning)

    async def detokenize(request: Request) -> Response:
        body, warning = read_body(await request.body(), DetokenizeBody)
        model = gateway.find_model(body.model, caller_of(request))
        text = model.tokenizer.decode(check_tokens(model, body.tokens, "tokens"), skip_special=False)
        return json_response({"prompt": text}, warning)

    return [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]


async def _encode(model: ServedModel, body: TokenizeBody) -> list[int]:
    if body.messages is not None and body.prompt is None:
        if body.add_special_tokens:
            raise UnsupportedParameter(
                "'add_special_tokens' is not supported with messages: the chat template writes them itself.",
                param="add_special_tokens",
            )
        return await encode_messages(
            model,
            body.messages,
            body.add_generation_prompt,
            body.chat_template_kwargs,
            offered_tools(body.tools),
            continue_final_message=bool(body.continue_final_message),
        )
    if body.prompt is not None and body.messages is None:
        return await encode_text(model, body.prompt, add_special=body.add_special_tokens is not False)
    raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")


def _description(model: ServedModel, tokens: list[int], body: TokenizeBody) -> dict[str, Any]:
    names = [token_name(model.tokenizer.token_bytes(token)) for token in tokens] if body.return_token_strs else None
    window, _ = model.window()
    return {"count": len(tokens), "max_model_len": window, "tokens": tokens, "token_strs": names}
