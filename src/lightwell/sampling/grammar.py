"""Grammars: which tokens may come next in an answer that has to have a form. llguidance reads them; it is imported when
the first one is asked for.

A grammar is a text as llguidance has it: Lark, or what its functions make of a JSON schema or a regular expression.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Bytes, Tokens

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

MOST_BYTES: Bytes = 1 << 16  # of a grammar; a larger one holds the interpreter lock for long even where it is refused

# The work that reading a grammar may take, a fifth of what is usual: schemas met in practice stay far below, those that
# are made to go beyond it (powers of powers) are refused.
_READING_FUEL, _LARGEST_GRAMMAR = 200_000, 200_000

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")  # where in a grammar that nobody wrote

Bits = npt.NDArray[np.uint32]


class GrammarVocabulary:
    """A model's tokens as llguidance knows them. Made in 0.2 to 3 seconds when it is first used; for several threads.

    ``vocab`` is the number of scores that the model gives, which may be more than there are tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Tokens) -> None:
        self._tokenizer, self._lock = tokenizer, Lock()
        self.vocab = vocab

    @property
    def tokens(self) -> "LLTokenizer":
        with self._lock:
            return self._tokens

    @cached_property
    def _tokens(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = TokenizerWrapper(_Tokens(self._tokenizer))
        return LLTokenizer(wrapped, n_vocab=self.vocab, eos_token=sorted(self._tokenizer.stop_ids))


class _Tokens:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = list(tokenizer.vocabulary.pieces)
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(tokenizer.stop_ids, default=None)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of this schema as a part of a Lark rule, written with one space after commas and colons: free white space
    is what a small model can write for ever."""
    return "%json " + json.dumps({**schema, "x-guidance": _SPACING}, ensure_ascii=False)


def regex_grammar(pattern: str) -> str:
    from llguidance import LLMatcher

    grammar: str = LLMatcher.grammar_from_regex(pattern)
    return grammar


def lark_of_gbnf(text: str) -> str:
    """Text that is no GBNF comes back as it is: it is no Lark either, and whoever reads it says so."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except GbnfToLarkError:
        return text
    return lark


def complaint_about(grammar: str, vocabulary: GrammarVocabulary | None = None) -> str:
    """Why a grammar cannot be used, in one line without the grammar itself; empty where it can."""
    from llguidance import LLMatcher

    if len(grammar.encode()) > MOST_BYTES:
        return f"it is larger than {MOST_BYTES} bytes"
    tokens = None if vocabulary is None else vocabulary.tokens
    complaint: str = LLMatcher.validate_grammar(grammar, tokens, limits=_limits())
    return _PLACE.sub("", complaint.partition("\n")[0])


class Matcher:
    """Where one answer is in its grammar. ``failed`` says why it cannot go on, which large grammars may do half way."""

    def __init__(self, vocabulary: GrammarVocabulary, grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher: LLMatcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=_limits())

    @property
    def failed(self) -> str:
        return self._matcher.get_error().partition("\n")[0] if self._matcher.is_error() else ""

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    def advance(self, tokens: Sequence[int]) -> None:
        """The answer has these tokens more. One that ends it may be followed by anything."""
        for token in tokens:
            if self._matcher.is_stopped():
                return
            self._matcher.consume_token(token)

    def fill(self, bits: Bits, proposed: Sequence[int] = ()) -> None:
        """Write the mask of the next token, then those after each of the ``proposed`` tokens, to rows (1 + P, words).

        Rows after a proposed token that the grammar forbids stay as they are: they are never drawn from.
        """
        self._fill(bits[0])
        advanced = 0
        for token in proposed:
            if self._matcher.is_stopped() or not self._matcher.validate_tokens([token]):
                break
            self._matcher.consume_token(token)
            advanced += 1
            self._fill(bits[advanced])
        if advanced and not self._matcher.is_error():
            self._matcher.rollback(advanced)

    def _fill(self, row: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=_READING_FUEL,
        max_grammar_size=_LARGEST_GRAMMAR,
        verbose_errors=False,
    )
