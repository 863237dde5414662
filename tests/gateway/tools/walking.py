"""Models that draw at random under a grammar, each token a byte or a control token."""

import random
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import ControlToken, Vocabulary
from tests.gateway.fake_engine import EOS, byte_tokenizer

MARKERS = ("[TOOL_CALLS]", "[ARGS]", "<tool_call>")
MOST_TOKENS = 4000


def marked_tokenizer() -> Tokenizer:
    """The byte tokenizer with some markers of calls as control tokens."""
    plain = byte_tokenizer()
    first = plain.vocab_size
    control = (*plain.vocabulary.control, *(ControlToken(first + n, name) for n, name in enumerate(MARKERS)))
    pieces = [*plain.vocabulary.pieces, *(name.encode() for name in MARKERS)]
    vocabulary = Vocabulary(pieces, control, plain.bos_id, plain.eos_id, True, plain.stop_ids)
    return Tokenizer(plain._model, vocabulary)


class Words:
    """A vocabulary as llguidance takes it: control tokens begin with a byte that no text has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special_ids
        self.eos_token_id, self.bos_token_id = EOS, tokenizer.bos_id
        self.tokens = [
            b"\xff" + piece if token in special else piece for token, piece in enumerate(tokenizer.vocabulary.pieces)
        ]
        self.special_token_ids = sorted(special)

    def __call__(self, text: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZERS = [byte_tokenizer(), marked_tokenizer()]
WORDS = [LLTokenizer(TokenizerWrapper(Words(tokenizer))) for tokenizer in TOKENIZERS]


def walk(grammar: str, words: LLTokenizer, draw: random.Random) -> list[int]:
    """Tokens drawn at random under a grammar, with a taste for ending what has begun."""
    matcher = LLMatcher(words, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens: list[int] = []
    while not matcher.is_stopped():
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        ends = [token for token in (EOS, *b'"}]') if token in allowed]
        token = draw.choice(ends) if ends and draw.random() < 0.7 else int(draw.choice(allowed))
        assert matcher.consume_token(token)
        tokens.append(token)
        assert len(tokens) < MOST_TOKENS
    return tokens
