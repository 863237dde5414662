"""Plan: from a body and the token ids of its prompts to engine requests, with every number made definite."""

import secrets
import time
import uuid

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, InvalidRequest, LightwellError
from lightwell.gateway.answer import Answer
from lightwell.gateway.bodies import GenerationBody
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.generate import Generation
from lightwell.sampling.params import SamplingParams
from lightwell.text.detokenizer import Detokenizer
from lightwell.units import Tokens

_SEEDS = 2**64


def plan(
    gateway: Gateway,
    body: GenerationBody,
    prefix: str,
    prompts: list[list[int]],
    lengths: list[Tokens],
    logprobs: int | None,
) -> Generation:
    """One choice for each prompt. ``prefix`` begins the answer's id; ``lengths`` are the answers' bounds in tokens."""
    generation_id = f"{prefix}-{uuid.uuid4().hex}"
    sampling = _sampling(body, logprobs)
    stop_tokens = _stop_tokens(gateway, body)
    answers = []
    for index, (tokens, max_tokens) in enumerate(zip(prompts, lengths, strict=True)):
        request = Request(
            id=generation_id if len(prompts) == 1 else f"{generation_id}-{index}",
            tokens=tokens,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_tokens=stop_tokens,
            priority=body.priority or 0,
            salt=body.cache_salt or "",
        )
        answers.append(Answer(index, request, gateway.tokenizer, _detokenizer(gateway, body)))
    return Generation(
        id=generation_id,
        created=int(time.time()),
        model=gateway.known_model(body.model),
        answers=answers,
        include_usage=_wants_usage(body),
    )


def _sampling(body: GenerationBody, logprobs: int | None) -> SamplingParams:
    seed = secrets.randbelow(_SEEDS) if body.seed is None else body.seed
    if seed >= _SEEDS:
        raise InvalidRequest(f"Invalid value for 'seed': {seed} is not below 2**64.", param="seed")
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),  # -1 switches it off too, as in vLLM
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=seed % _SEEDS,  # OpenAI's seeds are signed
        logprobs=logprobs,
    )


def _stop_tokens(gateway: Gateway, body: GenerationBody) -> frozenset[int]:
    stop_tokens = gateway.tokenizer.stop_tokens(body.stop_token_ids or ())
    return stop_tokens - gateway.tokenizer.stop_ids if body.ignore_eos else stop_tokens


def _detokenizer(gateway: Gateway, body: GenerationBody) -> Detokenizer:
    return Detokenizer(
        gateway.tokenizer,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
    )


def _wants_usage(body: GenerationBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest("'stream_options' is only for requests with 'stream': true.", param="stream_options")
    return bool(body.stream_options.include_usage)


def answer_length(
    gateway: Gateway, prompt: list[int], asked: Tokens | None, default: Tokens | None, param: str
) -> Tokens:
    """The bound of an answer in tokens: what was asked for, else the default or the room left if that is less.

    Raises ContextLengthExceeded, with all numbers, where it does not fit: what was asked for is never cut.
    """
    if not prompt:
        raise InvalidRequest("The prompt is empty: there is nothing to continue.", param=param)
    limit, what = gateway.window()
    room = limit - len(prompt)
    if asked is None and room >= 1:
        return room if default is None else min(default, room)
    if asked is not None and asked <= room:
        return asked
    error: LightwellError = ContextLengthExceeded(len(prompt), asked or default or 1, limit, what)
    error.param = param
    raise error
