"""A model in the command's own process, for one answer after another: ``run`` and ``chat``."""

import secrets
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded
from lightwell.events import Sampled
from lightwell.host.build import build_engine
from lightwell.host.local import generate
from lightwell.host.memory import plan_kv
from lightwell.host.messages import EngineConfig
from lightwell.runtimes.base import KVCacheDtype
from lightwell.sampling.params import SamplingParams
from lightwell.text import ChatTemplate, Detokenizer, Tokenizer, load_template, load_tokenizer
from lightwell.units import Tokens


@dataclass(frozen=True)
class Session:
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    context_tokens: Tokens


def open_session(
    model: str, chat_template: Path | None, threads: int | None, kv_cache_dtype: KVCacheDtype, pack_cache: bool
) -> Session:
    """Load the model by name or path, pulling it first where need be."""
    path = pull(model)
    checkpoint = open_checkpoint(path)
    context = checkpoint.spec.context_tokens
    plan = plan_kv(checkpoint, context, None, kv_cache_dtype)
    config = EngineConfig(
        model=str(path),
        name=model,
        kv_blocks=plan.blocks,
        context_tokens=context,
        threads=threads,
        max_sequences=1,
        pack_cache=pack_cache,
        kv_cache_dtype=kv_cache_dtype,
    )
    engine, _ = build_engine(config, checkpoint)
    return Session(engine, load_tokenizer(checkpoint), load_template(checkpoint, chat_template), context)


def answer(
    session: Session, prompt: list[int], max_tokens: Tokens | None, temperature: float, seed: int | None
) -> Generator[str, None, None]:
    """Yield the answer's text as it comes; closing the iterator stops the model.

    Raises ContextLengthExceeded where prompt and answer do not fit.
    """
    limits = session.engine.scheduler.limits
    room = min(session.context_tokens, limits.blocks * limits.block_tokens) - len(prompt)
    if room < 1:
        raise ContextLengthExceeded(len(prompt), max_tokens or 1, session.context_tokens)
    request = Request(
        id=secrets.token_hex(8),
        tokens=prompt,
        sampling=SamplingParams(temperature=temperature, seed=secrets.randbits(64) if seed is None else seed),
        max_tokens=max_tokens or room,
        stop_tokens=session.tokenizer.stop_ids,
    )
    detokenizer = Detokenizer(session.tokenizer)
    for event in generate(session.engine, request):
        text = detokenizer.feed(event.token) if isinstance(event, Sampled) else detokenizer.finish()
        if text:
            yield text
