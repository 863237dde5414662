"""Answer: one choice being written. Engine events in, deltas of text out, and no I/O.

A non-streamed answer is the same deltas, joined.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lightwell.engine.request import Request
from lightwell.errors import EngineDied
from lightwell.events import Finished, Sampled
from lightwell.text.detokenizer import Detokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Tokens

FinishReason: TypeAlias = Literal["stop", "length"]
_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this


@dataclass(slots=True)
class Score:
    """A shown token with its log-probability, and the best candidates in its place. ``offset``: in characters."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]
    offset: int


@dataclass(slots=True)
class Delta:
    """What one choice says next. ``first`` once, at its beginning; ``finish_reason`` once, at its end."""

    index: int
    text: str
    scores: list[Score] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first: bool = False


class Answer:
    def __init__(self, index: int, request: Request, tokenizer: Tokenizer, detokenizer: Detokenizer) -> None:
        self.index, self.request = index, request
        self.output_tokens: Tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._scores = _Scores(tokenizer) if request.sampling.logprobs is not None else None
        self._begun = False

    @property
    def stopped_by_string(self) -> bool:
        return self._detokenizer.stopped_by is not None

    def feed(self, events: list[Sampled | Finished]) -> Delta:
        """Take what the engine said since the last call. After a stop string the rest of the events is left aside."""
        text = ""
        for event in events:
            text += self._take(event)
            if self.finish_reason is not None:
                break
        scores = self._scores.release(text, self.finish_reason, self.stopped_by_string) if self._scores else []
        first, self._begun = not self._begun, True
        return Delta(self.index, text, scores, self.finish_reason, first)

    def _take(self, event: Sampled | Finished) -> str:
        if isinstance(event, Finished):
            self.finish_reason = _finish_reason(event)
            return self._detokenizer.finish()
        self.output_tokens += 1
        if event.token in self.request.stop_tokens:
            return ""  # ends the answer and is not part of it; Finished comes next
        if self._scores is not None:
            self._scores.add(event)
        text = self._detokenizer.feed(event.token)
        if self.stopped_by_string:
            self.finish_reason = "stop"
        return text


def _finish_reason(event: Finished) -> FinishReason:
    match event.reason:
        case "stop":
            return "stop"
        case "length":
            return "length"
        case _:
            raise EngineDied("The engine aborted this request.")


class _Scores:
    """Holds each token's score until the first of its bytes has been shown, so that scores go with their text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: deque[tuple[int, Score]] = deque()  # with where the token begins, in bytes
        self._bytes, self._characters = 0, 0  # of all tokens so far
        self._shown_bytes = 0

    def add(self, event: Sampled) -> None:
        assert event.logprobs is not None, "the request asked for log-probabilities"
        token = self._tokenizer.token_bytes(event.token)
        top = [
            (self._tokenizer.token_bytes(candidate), _finite(logprob))
            for candidate, logprob in zip(event.logprobs.top_ids, event.logprobs.top, strict=True)
        ]
        score = Score(token, _finite(event.logprobs.chosen), top, self._characters)
        self._held.append((self._bytes, score))
        self._bytes += len(token)
        self._characters += sum(byte & 0xC0 != 0x80 for byte in token)  # bytes that begin a character

    def release(self, text: str, finish_reason: FinishReason | None, cut: bool) -> list[Score]:
        """The scores that go with this text: at the end all of them, but none of tokens that a stop string cut off."""
        self._shown_bytes += len(text.encode())
        everything = finish_reason is not None and not cut
        released: list[Score] = []
        while self._held and (everything or self._held[0][0] < self._shown_bytes):
            released.append(self._held.popleft()[1])
        return released


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def usage(answers: list[Answer], cached_tokens: Tokens) -> dict[str, Any]:
    """OpenAI's usage object over all choices."""
    prompt = sum(len(answer.request.tokens) for answer in answers)
    output = sum(answer.output_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
