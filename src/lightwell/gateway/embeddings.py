"""POST /v1/embeddings: one vector for each input, of the model's own final hidden states.

An input is a request of the engine like any other, only that a vector comes of it and no tokens.
"""

import asyncio
import base64
import math
import time
import uuid
from array import array
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.engine.request import Pooling
from lightwell.engine.request import Request as EngineRequest
from lightwell.errors import ContextLengthExceeded, InvalidRequest, LightwellError
from lightwell.gateway.answer import Answer
from lightwell.gateway.bodies import EmbeddingBody, TokenPrompt
from lightwell.gateway.caller import Caller, caller_of
from lightwell.gateway.disconnect import unless_gone
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.gateway.parameters import REFUSED, read_body
from lightwell.gateway.prompts import check_tokens, encode_text, prompts_of
from lightwell.gateway.reply import json_response
from lightwell.gateway.served import ServedModel
from lightwell.gateway.stages import answered
from lightwell.sampling.params import SamplingParams
from lightwell.text.detokenizer import Detokenizer

MOST_INPUTS = 2048  # OpenAI's bound
_MOST_AT_ONCE = 32  # in the engine, which runs 64 by default: a long list leaves room for others
_DEFAULT_POOLING: Pooling = "last"  # of a decoder, whose last token alone has seen all others
_REFUSED: dict[str, tuple[Any, ...]] = REFUSED | {
    "normalize": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
}


def embedding_routes(gateway: Gateway) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body, warning = read_embedding_body(await request.body())
        caller = caller_of(request)
        model = gateway.find_model(body.model, caller)
        gateway.admit(model)
        generation = await unless_gone(request.receive, plan_embeddings(model, caller, body))
        content = await unless_gone(request.receive, embedded(gateway, generation, body))
        return json_response(content, generation.headers | warning)

    return [Route("/v1/embeddings", embeddings, methods=["POST"])]


def read_embedding_body(data: bytes) -> tuple[EmbeddingBody, dict[str, str]]:
    return read_body(data, EmbeddingBody, _REFUSED)


async def plan_embeddings(model: ServedModel, caller: Caller, body: EmbeddingBody) -> Generation:
    """Raises InvalidRequest for inputs or dimensions that the model cannot have."""
    _check_dimensions(model, body)
    inputs = prompts_of(body.input, "input")
    if len(inputs) > MOST_INPUTS:
        raise InvalidRequest(f"'input' has {len(inputs)} inputs: at most {MOST_INPUTS} are possible.", param="input")
    generation_id = f"embd-{uuid.uuid4().hex}"
    answers: list[Answer] = []
    writes_nothing = Detokenizer(model.tokenizer)
    for index, each in enumerate(inputs):
        param = "input" if len(inputs) == 1 else f"input[{index}]"
        request = EngineRequest(
            id=generation_id if len(inputs) == 1 else f"{generation_id}-{index}",
            tokens=await _tokens(model, each, param),
            sampling=SamplingParams(temperature=0),
            max_tokens=0,
            priority=body.priority or 0,
            salt=f"{caller.tenant}/",
            pooling=body.pooling or _DEFAULT_POOLING,
        )
        answers.append(Answer(index, request, model.tokenizer, writes_nothing))
        await asyncio.sleep(0)  # many short texts take as long to encode as one that has a thread of its own
    return Generation(
        id=generation_id,
        created=int(time.time()),
        served=model,
        model=body.model or next(filter(caller.may_use, model.names)),
        caller=caller,
        api="embeddings",
        answers=answers,
        most_at_once=_MOST_AT_ONCE,
    )


def _check_dimensions(model: ServedModel, body: EmbeddingBody) -> None:
    own = model.engine.hello.embedding_dimensions
    if body.dimensions not in (None, own):
        raise InvalidRequest(
            f"'dimensions' is {body.dimensions}, but vectors of this model have {own}, and it is not made to have them "
            "cut. Leave it out.",
            param="dimensions",
        )


async def _tokens(model: ServedModel, text: str | TokenPrompt, param: str) -> list[int]:
    """Raises ContextLengthExceeded where the input does not fit: it is never cut."""
    if not text:
        raise InvalidRequest(f"{param!r} is empty: there is nothing to make a vector of.", param=param)
    if isinstance(text, str):
        tokens = await encode_text(model, text, add_special=True)
    else:
        tokens = check_tokens(model, text, param)
    model.lengths.check(len(tokens), None, param)
    limit, what = model.window()
    if len(tokens) > limit:
        error = ContextLengthExceeded(len(tokens), 0, limit, what)
        error.param = param
        raise error
    return tokens


async def embedded(gateway: Gateway, generation: Generation, body: EmbeddingBody) -> dict[str, Any]:
    """The response's body, once every vector is there. Leaving early aborts what is not."""
    async with aclosing(answered(gateway, generation)) as deltas:
        async for _ in deltas:
            pass
    assert generation.usage is not None, "every vector has come"
    prompt_tokens = generation.usage["prompt_tokens"]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": answer.index, "embedding": _written(answer, body)}
            for answer in generation.answers
        ],
        "model": generation.model,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def _written(answer: Answer, body: EmbeddingBody) -> str | list[float]:
    values = array("f", answer.embedding)
    if not all(map(math.isfinite, values)):
        raise LightwellError(f"The model's vector of input {answer.index} is not finite: its weights may be damaged.")
    return base64.b64encode(answer.embedding).decode() if body.encoding_format == "base64" else values.tolist()
