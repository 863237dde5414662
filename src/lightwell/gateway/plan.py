"""Plan: from a body and the token ids of its prompts to engine requests, with every number made definite."""

import hashlib
import secrets
import struct
import time
import uuid
from dataclasses import dataclass

import msgspec

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, InvalidRequest, LightwellError
from lightwell.gateway.answer import Answer
from lightwell.gateway.bodies import GenerationBody
from lightwell.gateway.caller import Caller
from lightwell.gateway.echo import Echo
from lightwell.gateway.generate import Generation
from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.served import ServedModel
from lightwell.gateway.tools.calling import Calling
from lightwell.sampling.params import SamplingParams
from lightwell.text.detokenizer import Detokenizer
from lightwell.units import Tokens

_SEEDS = 2**64
_MOST_BIASES = 1024
_ID_PREFIXES = {  # by the API
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "messages": "msg_",
    "ollama": "ollama-",
    "responses": "resp_",
    "summary": "summary-",
}


@dataclass(frozen=True)
class Prompt:
    """``max_tokens`` bounds each answer to it; ``echo`` where the answers begin with the prompt itself."""

    tokens: list[int]
    max_tokens: Tokens
    echo: Echo | None = None


def plan(
    model: ServedModel,
    caller: Caller,
    body: GenerationBody,
    api: str,
    prompts: list[Prompt],
    logprobs: int | None,
    best_of: int | None = None,
    calling: Calling | None = None,
    grammar: str = "",
) -> Generation:
    """``n`` choices for each prompt, out of ``best_of`` if that is more. With ``calling`` each choice
    is read for tool calls, and has that grammar."""
    choices = body.n or 1
    candidates = best_of or choices
    generation_id = f"{_ID_PREFIXES[api]}{uuid.uuid4().hex}"
    scores = 0 if logprobs is None and candidates > choices else logprobs
    common = _common_request(model, caller, body, scores, calling.grammar if calling else grammar)
    answers: list[Answer] = []
    for prompt in prompts:
        _check_least(body, prompt)
        scored = _prompt_scores(model, body, prompt)
        first = len(answers)
        for index in range(first, first + candidates):
            request = msgspec.structs.replace(
                common,
                id=generation_id if len(prompts) * candidates == 1 else f"{generation_id}-{index}",
                tokens=prompt.tokens,
                sampling=_of_choice(common.sampling, index - first),
                max_tokens=prompt.max_tokens,
                fork_of=answers[first].request.id if index > first else "",
                prompt_logprobs=_prompt_logprobs(body, prompt, index - first, logprobs),
            )
            answers.append(_answer(model, body, index, request, prompt, scored, calling))
    return Generation(
        id=generation_id,
        created=int(time.time()),
        served=model,
        model=body.model or next(filter(caller.may_use, model.names)),
        caller=caller,
        api=api,
        answers=answers,
        candidates=candidates,
        choices=choices,
        include_usage=_wants_usage(body),
    )


def _common_request(
    model: ServedModel, caller: Caller, body: GenerationBody, logprobs: int | None, grammar: str
) -> Request:
    """What the engine requests of all choices have in common."""
    return Request(
        id="",
        tokens=[],
        sampling=_sampling(model, body, logprobs),
        max_tokens=0,
        stop_tokens=_stop_tokens(model, body),
        priority=body.priority or 0,
        salt=f"{caller.tenant}/{body.cache_salt or ''}",  # whether a prefix is cached tells what others asked
        min_tokens=body.min_tokens or 0,
        grammar=grammar,
    )


def _answer(
    model: ServedModel,
    body: GenerationBody,
    index: int,
    request: Request,
    prompt: Prompt,
    scored: PromptScores | None,
    calling: Calling | None,
) -> Answer:
    return Answer(
        index,
        request,
        model.tokenizer,
        _detokenizer(model, body, calling.shown if calling else frozenset()),
        echo=prompt.echo,
        prompt_scores=scored,
        named_stops=frozenset(body.stop_token_ids or ()),
        parser=calling.parser() if calling else None,
    )


def _prompt_logprobs(body: GenerationBody, prompt: Prompt, choice: int, logprobs: int | None) -> int | None:
    """The first choice has the prompt scored, for all. Where nothing is to be written, scoring it is all there is."""
    if prompt.max_tokens == 0:
        return max(logprobs or 0, body.prompt_logprobs or 0)
    asked = (body.prompt_logprobs, None if prompt.echo is None else logprobs)
    return None if choice else max((count for count in asked if count is not None), default=None)


def _prompt_scores(model: ServedModel, body: GenerationBody, prompt: Prompt) -> PromptScores | None:
    if body.prompt_logprobs is None:
        return None
    if body.stream:
        raise InvalidRequest("'prompt_logprobs' are not for streams: leave out 'stream'.", param="prompt_logprobs")
    return PromptScores(model.tokenizer, prompt.tokens, body.prompt_logprobs)


def _check_least(body: GenerationBody, prompt: Prompt) -> None:
    if (body.min_tokens or 0) > prompt.max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is {body.min_tokens}, but the answer may have only {prompt.max_tokens} tokens.",
            param="min_tokens",
        )


def _sampling(model: ServedModel, body: GenerationBody, logprobs: int | None) -> SamplingParams:
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
        repetition_penalty=body.repetition_penalty or 1.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_logit_bias(model, body.logit_bias or {}),
    )


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """The first choice draws with the request's own seed, as it would alone; each other one with a seed made of it."""
    if choice == 0:
        return sampling
    digest = hashlib.blake2b(struct.pack("<QQ", sampling.seed, choice), digest_size=8).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(digest, "little"))


def _logit_bias(model: ServedModel, biases: dict[str, float]) -> dict[int, float]:
    if len(biases) > _MOST_BIASES:
        raise InvalidRequest(
            f"'logit_bias' has {len(biases)} tokens: at most {_MOST_BIASES} are possible.", param="logit_bias"
        )
    return {_token_id(model, key): bias for key, bias in biases.items()}


def _token_id(model: ServedModel, key: str) -> int:
    """A key of ``logit_bias``: one way to write each id, so that no two keys mean the same token."""
    end = model.tokenizer.vocab_size
    token = int(key) if key.isascii() and key.isdecimal() and len(key) <= len(str(end)) else end
    if token >= end or str(token) != key:
        raise InvalidRequest(
            f"'logit_bias' has the key {key[:20]!r}: keys are token ids from 0 to {end - 1}.", param="logit_bias"
        )
    return token


def _stop_tokens(model: ServedModel, body: GenerationBody) -> frozenset[int]:
    stop_tokens = model.tokenizer.stop_tokens(body.stop_token_ids or ())
    return frozenset(body.stop_token_ids or ()) if body.ignore_eos else stop_tokens


def _detokenizer(model: ServedModel, body: GenerationBody, shown: frozenset[int]) -> Detokenizer:
    return Detokenizer(
        model.tokenizer,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        shown=shown,
    )


def _wants_usage(body: GenerationBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest("'stream_options' is only for requests with 'stream': true.", param="stream_options")
    return bool(body.stream_options.include_usage)


def answer_length(
    model: ServedModel, prompt: list[int], asked: Tokens | None, default: Tokens | None, param: str
) -> Tokens:
    """The bound of an answer in tokens: what was asked for, else the default or the room left if that is less.

    Raises ContextLengthExceeded, with all numbers, where it does not fit: what was asked for is never cut.
    """
    if not prompt:
        raise InvalidRequest("The prompt is empty: there is nothing to continue.", param=param)
    model.lengths.check(len(prompt), asked, param)
    default = model.lengths.default(default)
    limit, what = model.window()
    room = limit - len(prompt)
    if asked is None and room >= 1:
        return room if default is None else min(default, room)
    if asked is not None and asked <= room:
        return asked
    wanted = next(tokens for tokens in (asked, default, 1) if tokens is not None)
    error: LightwellError = ContextLengthExceeded(len(prompt), wanted, limit, what)
    error.param = param
    raise error
