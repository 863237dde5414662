"""Shapes: how the two OpenAI endpoints write the same deltas. Everything else they share."""

from collections.abc import Iterator
from typing import Any, Protocol

from lightwell.gateway.answer import Delta, Score

Json = dict[str, Any]


class Shape(Protocol):
    object: str
    chunk_object: str

    def chunks(self, delta: Delta) -> Iterator[Json]:
        """The entries of ``choices`` that a stream sends for a delta, one event each."""
        ...

    def choice(self, whole: Delta) -> Json:
        """The entry of ``choices`` in an answer that is not streamed."""
        ...


class ChatShape:
    object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if delta.first:
            yield _chunk(delta.index, {"role": "assistant", "content": ""}, None, None)
        if delta.text or delta.scores:
            yield _chunk(delta.index, {"content": delta.text}, self._scores(delta), None)
        if delta.finish_reason is not None:
            yield _chunk(delta.index, {}, None, delta.finish_reason)

    def choice(self, whole: Delta) -> Json:
        message = {"role": "assistant", "content": whole.text, "refusal": None}
        return {
            "index": whole.index,
            "message": message,
            "logprobs": self._scores(whole),
            "finish_reason": whole.finish_reason,
        }

    def _scores(self, delta: Delta) -> Json | None:
        if not self._logprobs:
            return None
        content = [
            _token(score.token, score.logprob) | {"top_logprobs": [_token(*candidate) for candidate in score.top]}
            for score in delta.scores
        ]
        return {"content": content, "refusal": None}


def _chunk(index: int, delta: Json, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _token(token: bytes, logprob: float) -> Json:
    return {"token": token_name(token), "logprob": logprob, "bytes": list(token)}


class CompletionShape:
    object = chunk_object = "text_completion"

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if delta.text or delta.scores:
            yield _text(delta.index, delta.text, self._scores(delta), None)
        if delta.finish_reason is not None:
            yield _text(delta.index, "", None, delta.finish_reason)

    def choice(self, whole: Delta) -> Json:
        return _text(whole.index, whole.text, self._scores(whole), whole.finish_reason)

    def _scores(self, delta: Delta) -> Json | None:
        return _columns(delta.scores) if self._logprobs else None


def _text(index: int, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _columns(scores: list[Score]) -> Json:
    """The older shape of log-probabilities. The chosen token is always among ``top_logprobs``."""
    return {
        "tokens": [token_name(score.token) for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [
            {token_name(token): logprob for token, logprob in [*score.top, (score.token, score.logprob)]}
            for score in scores
        ],
        "text_offset": [score.offset for score in scores],
    }


def token_name(token: bytes) -> str:
    """A token as a string; where its bytes are no whole characters, OpenAI's ``bytes:\\xe2\\x80``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
