"""``lightwell run MODEL PROMPT``: one answer on standard output."""

from pathlib import Path

from lightwell.cli.session import answer, open_session
from lightwell.runtimes.base import KVCacheDtype
from lightwell.text import encode_chat
from lightwell.units import Tokens


def run(
    model: str,
    prompt: str,
    max_tokens: Tokens | None,
    temperature: float,
    seed: int | None,
    raw: bool,
    chat_template: Path | None,
    threads: int | None,
    kv_cache_dtype: KVCacheDtype,
    pack_cache: bool,
) -> None:
    """A model without a chat template continues the text, as ``raw`` asks any model to."""
    session = open_session(model, chat_template, threads, kv_cache_dtype, pack_cache)
    if raw or session.template is None:
        tokens = session.tokenizer.encode_prompt(prompt)
    else:
        tokens = encode_chat(session.tokenizer, session.template, [{"role": "user", "content": prompt}])
    for text in answer(session, tokens, max_tokens, temperature, seed):
        print(text, end="", flush=True)
    print()
