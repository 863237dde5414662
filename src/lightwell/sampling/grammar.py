"""Grammars: which tokens may come next, through llguidance, which is imported when the first grammar arrives.

A grammar is a text in llguidance's dialect of Lark, which may hold JSON schemas (``%json {...}``). Compiling one gives
a Matcher for each answer; it follows the answer's tokens.
"""

import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from lightwell.errors import InvalidRequest
from lightwell.units import Bytes, Tokens

if TYPE_CHECKING:  # what takes long to import, and is not needed before the first grammar
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from lightwell.text.tokenizer import Tokenizer

    Bits = npt.NDArray[np.uint32]

MAX_GRAMMAR_BYTES: Bytes = 1 << 16
COMPILE_STACK_BYTES: Bytes = 16 << 20  # llguidance recurses; what was checked with less stack cannot overflow this one
_KEPT_GRAMMARS = 8
_NICENESS = 10  # of the compiling thread: it may take a second, and steps need their processors


class GrammarVocabulary(msgspec.Struct, frozen=True, array_like=True):
    """``pieces[id]`` are a token's bytes. ``special`` tokens never count as text; ``ends`` end an answer."""

    pieces: list[bytes]
    special: list[int]
    ends: list[int]


def grammar_vocabulary(tokenizer: "Tokenizer") -> GrammarVocabulary:
    """What grammars need of a tokenizer. What ends an answer is no text either, whatever kind of token it is.

    Raises InvalidRequest where no token ends an answer.
    """
    if not tokenizer.stop_ids:
        raise InvalidRequest("This model has no token that ends an answer, so a constrained one could not end.")
    special = tokenizer.special_ids | tokenizer.stop_ids
    return GrammarVocabulary(tokenizer.vocabulary.pieces, sorted(special), sorted(tokenizer.stop_ids))


class _Pieces:
    """A vocabulary in the shape that llguidance's TokenizerWrapper wants."""

    def __init__(self, vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.pieces
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.ends[0]
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def native_tokenizer(vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]] | None = None) -> "LLTokenizer":
    """llguidance's index of a vocabulary: 0.1 s and 10 MB for 49,000 tokens, 1 s and 60 MB for 262,000.

    ``encode`` cuts text that a grammar leaves no choice about into the tokens that the model knows it by. Where there
    is none, or it does not keep to the text (it leaves characters out, or takes others for them), the longest tokens
    that fit are taken.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    def cut(text: str) -> list[int]:
        tokens = encode(text) if encode else []
        exact = b"".join([vocabulary.pieces[token] for token in tokens]) == text.encode()
        return tokens if exact else native.greedy_tokenize(text)

    native = LLTokenizer(
        TokenizerWrapper(_Pieces(vocabulary, cut)), n_vocab=len(vocabulary.pieces), eos_token=vocabulary.ends
    )
    return native


def native_matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """A matcher at the start of the grammar. Raises InvalidRequest with llguidance's reason where it cannot be used."""
    from llguidance import LLMatcher

    if (size := len(grammar.encode(errors="surrogatepass"))) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"it is {size} bytes long; {MAX_GRAMMAR_BYTES} are the most.")
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
    if matcher.is_error():
        raise InvalidRequest(_plain(matcher.get_error()))
    return matcher


def _limits() -> "LLParserLimits":
    """A twelfth to a half of llguidance's own; no schema of the public collections that it can compile comes near them.
    They bound the work for one mask to some milliseconds, and what the lexer of one answer may grow to."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


_PREFIX = re.compile(r"^(at 1\(8\): )?(failed to compile JSON schema: )?")  # the place where "start: " has its term
_DETAIL = re.compile(r"^error: (.*)$", re.MULTILINE)
_LONGEST_REASON = 300
_NOTHING = "nothing that this model can write fits it"


def _plain(reason: str) -> str:
    """The reason in one line, without the grammar that llguidance repeats below it."""
    if not reason or reason.startswith("NoExtension"):
        return _NOTHING
    line = _PREFIX.sub("", reason.strip().partition("\n")[0])
    if line.endswith(":") and (detail := _DETAIL.search(reason)):
        line = f"{line[:_LONGEST_REASON]} {detail[1]}"
    return line if len(line) <= 2 * _LONGEST_REASON else f"{line[: 2 * _LONGEST_REASON]}..."


class Matcher:
    """Follows one answer through its grammar. For one thread at a time.

    ``finished``: the answer is complete, and nothing but a token that ends it could follow. ``error`` says why the
    grammar cannot be followed any further (it got too complex): the answer has to end there.
    """

    def __init__(self, pristine: "LLMatcher", vocabulary: GrammarVocabulary) -> None:
        self._pristine = pristine
        self._native = pristine.deep_copy()
        self._ends = vocabulary.ends
        self._words = -(-len(vocabulary.pieces) // 32)
        self._tokens: list[int] = []
        self.finished = False
        self.error = ""

    def advance(self, tokens: Sequence[int]) -> None:
        """Follow tokens that the answer now has. Sets ``error`` where the grammar does not allow them."""
        text = [token for token in tokens if token not in self._ends]  # llguidance cannot take back those that end
        self._tokens += text
        if not self.error and not self._native.consume_tokens(text):
            self.error = _plain(self._native.get_error())
        self.finished = not self.error and (len(text) < len(tokens) or self._native.is_stopped())

    def fill(self, rows: "Bits", proposed: Sequence[int] = ()) -> int:
        """Write the masks of the next token and of those after each proposed one: ``rows`` (1 + P, words), of which
        those beyond ceil(vocab / 32) stay as they are.

        Returns how many rows are written: what is drawn from later ones is void. They are those after a proposed token
        that is not allowed, that ends the answer, or with which the grammar gets too complex. Zero means that ``error``
        is set.
        """
        rows[:, : self._words] = 0xFFFFFFFF
        followed = written = 0
        for place, row in enumerate(rows[:, : self._words]):
            self._native.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self._native.is_error() or not row.any():
                self._come_back(place)
                return place
            written += 1
            if place == len(proposed) or proposed[place] in self._ends or not allows(row, proposed[place]):
                break
            self._native.consume_token(proposed[place])
            followed += 1
        if followed:
            self._native.rollback(followed)
        return written

    def _come_back(self, followed: Tokens) -> None:
        """After an error there is no way back. One that came from proposed tokens must not end the answer."""
        if not followed:
            self.error = _plain(self._native.get_error())
            return
        self._native = self._pristine.deep_copy()
        self._native.consume_tokens(self._tokens)


def allows(row: "Bits", token: int) -> bool:
    """Whether a mask has the token's bit."""
    return bool(row[token >> 5] >> (token & 31) & 1)


class Grammars:
    """Compiles the grammars of one model's answers, one at a time, in a thread beside the steps.

    ``load`` is called in that thread for the first grammar. The latest ones are kept: many requests share one.
    """

    def __init__(self, load: "Callable[[], Tokenizer]") -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "grammars", _give_way)
        self._pristine = lru_cache(_KEPT_GRAMMARS)(self._compile)

    def start(self, grammar: str) -> Future[Matcher]:
        """The matcher of a new answer, when it is ready. Its exception is InvalidRequest where there is none."""
        before = threading.stack_size(COMPILE_STACK_BYTES)  # of the thread, if this is the first grammar
        try:
            return self._thread.submit(self._matcher, grammar)
        finally:
            threading.stack_size(before)

    @cached_property
    def _vocabulary(self) -> tuple["LLTokenizer", GrammarVocabulary]:
        tokenizer = self._load()
        vocabulary = grammar_vocabulary(tokenizer)
        return native_tokenizer(vocabulary, tokenizer.encode_continuation), vocabulary

    def _compile(self, grammar: str) -> "LLMatcher":
        return native_matcher(self._vocabulary[0], grammar)

    def _matcher(self, grammar: str) -> Matcher:
        import numpy as np

        matcher = Matcher(self._pristine(grammar), self._vocabulary[1])
        matcher.fill(np.empty((1, -(-len(self._vocabulary[1].pieces) // 32)), np.uint32))  # the first takes longest
        return matcher


def _give_way() -> None:
    with suppress(OSError, AttributeError):  # only Linux has it for single threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
