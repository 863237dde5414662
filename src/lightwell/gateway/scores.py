"""Scores: tokens with their log-probabilities and the best candidates in their place, as answers show them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightwell.events import Sampled, TokenLogprobs
from lightwell.text.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this


class Candidate(NamedTuple):
    id: int
    token: bytes
    logprob: float


@dataclass(slots=True)
class Score:
    """``logprob`` None: the first token of a prompt, which follows nothing. ``offset``: where it begins, in characters.
    ``shown`` False: a stop token, which ended the answer and is no part of its text.
    """

    id: int
    token: bytes
    logprob: float | None
    top: list[Candidate]
    offset: int
    shown: bool = True


def scored(
    tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int, *, shown: bool = True
) -> Score:
    name = tokenizer.token_bytes(token)
    if logprobs is None:
        return Score(token, name, None, [], offset, shown)
    top = [
        Candidate(candidate, tokenizer.token_bytes(candidate), finite(logprob))
        for candidate, logprob in zip(logprobs.top_ids, logprobs.top, strict=True)
    ]
    return Score(token, name, finite(logprobs.chosen), top, offset, shown)


def finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def characters(piece: bytes) -> int:
    """How many characters begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in piece)


class HeldScores:
    """Holds each token's score until the first of its bytes has been shown, so that scores go with their text."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes], offset: int) -> None:
        """``pieces``: what each token adds to the text, by id. ``offset``: of the answer's beginning, in characters."""
        self._tokenizer, self._pieces = tokenizer, pieces
        self._held: deque[tuple[int, Score]] = deque()  # with where the token begins, in bytes
        self._bytes, self._characters = 0, offset  # of all tokens so far
        self._shown_bytes = 0

    def add(self, event: Sampled, *, shown: bool) -> None:
        assert event.logprobs is not None, "the request asked for log-probabilities"
        score = scored(self._tokenizer, event.token, event.logprobs, self._characters, shown=shown)
        self._held.append((self._bytes, score))
        if shown:
            piece = self._pieces[event.token]
            self._bytes += len(piece)
            self._characters += characters(piece)

    def release(self, text: str, *, ended: bool, cut: bool) -> list[Score]:
        """The scores that go with this text: at the end all of them, but none of tokens that a stop string cut off."""
        self._shown_bytes += len(text.encode())
        everything = ended and not cut
        released: list[Score] = []
        while self._held and (everything or self._held[0][0] < self._shown_bytes):
            released.append(self._held.popleft()[1])
        return released
