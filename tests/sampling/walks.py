"""Answers drawn at random from what a grammar allows, with a liking for what comes to an end."""

import random

import numpy as np

from lightwell.sampling.grammar import Matcher
from lightwell.text.tokenizer import Tokenizer

CLOSING = (b'"', b"}", b"]", b'"}', b'"]', b"}}", b"0", b"1", b'{"', b'":', b",", b"e")


def allowed_tokens(row: np.ndarray, vocab: int) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:vocab]).tolist()


def mask(matcher: Matcher, vocab: int) -> list[int]:
    """The allowed tokens; empty where the matcher has failed."""
    rows = np.empty((1, -(-vocab // 32)), np.uint32)
    return allowed_tokens(rows[0], vocab) if matcher.fill(rows) else []


def walk(matcher: Matcher, tokenizer: Tokenizer, rng: random.Random, most: int = 400) -> tuple[list[int], bool]:
    """The tokens of an answer without the one that ends it, and whether it did end."""
    closing = [token for token, piece in enumerate(tokenizer.vocabulary.pieces) if piece in CLOSING]
    tokens: list[int] = []
    while len(tokens) < most and not matcher.finished:
        allowed = mask(matcher, tokenizer.vocab_size)
        if not allowed:
            return tokens, False
        ends = [token for token in allowed if token in tokenizer.stop_ids]
        if ends and (len(ends) == len(allowed) or rng.random() < 0.6):
            return tokens, True
        likely = [token for token in closing if token in set(allowed)] if rng.random() < 0.6 else []
        token = rng.choice(likely or [token for token in allowed if token not in ends])
        matcher.advance([token])
        tokens.append(token)
    return tokens, matcher.finished
