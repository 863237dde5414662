"""Shapes: how the two OpenAI endpoints write the same deltas. Everything else they share."""

from collections.abc import Iterator
from typing import Any, Protocol

from lightwell.gateway.answer import Delta
from lightwell.gateway.generate import Generation
from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.scores import Score
from lightwell.gateway.tools.parser import CallDelta

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

    def beside(self, generation: Generation) -> Json:
        """What stands beside ``choices`` in an answer that is not streamed, and in the first event of a stream."""
        ...


class _Shape:
    """What both write alike. ``token_ids``: the tokens' ids beside the text; ``ids_as_names``: in place of names."""

    def __init__(self, *, logprobs: bool = False, token_ids: bool = False, ids_as_names: bool = False) -> None:
        self._logprobs, self._token_ids, self._ids_as_names = logprobs, token_ids, ids_as_names

    def _name(self, token: int, piece: bytes) -> str:
        return f"token_id:{token}" if self._ids_as_names else token_name(piece)

    def _ids(self, delta: Delta) -> Json:
        return {"token_ids": delta.tokens} if self._token_ids else {}

    def _says(self, delta: Delta, scores: list[Score]) -> bool:
        return bool(delta.text or scores or (self._token_ids and delta.tokens))


def _ending(delta: Delta) -> Json:
    """``finish_details`` stands there only where there is more to say than the reason."""
    details = {"finish_details": {"type": delta.finish_detail}} if delta.finish_detail else {}
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason} | details


class ChatShape(_Shape):
    object, chunk_object = "chat.completion", "chat.completion.chunk"

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if delta.first:
            yield _chunk(delta.index, {"role": "assistant", "content": ""}, None)
        scores = _of_shown(delta)
        if self._says(delta, scores):
            yield _chunk(delta.index, {"content": delta.text}, self._scores(scores)) | self._ids(delta)
        if delta.calls:
            yield _chunk(delta.index, {"tool_calls": [_call_chunk(call) for call in delta.calls]}, None)
        if delta.finish_reason is not None:
            yield _chunk(delta.index, {}, None) | _ending(delta)

    def choice(self, whole: Delta) -> Json:
        message: Json = {"role": "assistant", "content": whole.text, "refusal": None}
        if whole.calls:
            message |= {"content": whole.text or None, "tool_calls": [_call(call) for call in whole.calls]}
        choice = {"index": whole.index, "message": message, "logprobs": self._scores(_of_shown(whole))}
        return choice | _ending(whole) | self._ids(whole)

    def beside(self, generation: Generation) -> Json:
        ids = {"prompt_token_ids": generation.answers[0].request.tokens} if self._token_ids else {}
        context = {} if generation.context is None else {"context": generation.context}
        return ids | context | _prompt_logprobs(generation.answers[0].prompt_scores)

    def _scores(self, scores: list[Score]) -> Json | None:
        if not self._logprobs:
            return None
        content = [
            self._token(score.id, score.token, score.logprob)
            | {"top_logprobs": [self._token(*candidate) for candidate in score.top]}
            for score in scores
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, piece: bytes, logprob: float | None) -> Json:
        return {"token": self._name(token, piece), "logprob": logprob, "bytes": list(piece)}


def _call(call: CallDelta) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_chunk(call: CallDelta) -> Json:
    """Which call it is, everything about it once, and then only more of its arguments."""
    more = {"function": {"arguments": call.arguments}} if call.name is None else _call(call)
    return {"index": call.index, **more}


def _of_shown(delta: Delta) -> list[Score]:
    """Stop tokens have no score here, as in OpenAI's answers."""
    return [score for score in delta.scores if score.shown]


def _chunk(index: int, delta: Json, logprobs: Json | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


class CompletionShape(_Shape):
    object = chunk_object = "text_completion"

    def chunks(self, delta: Delta) -> Iterator[Json]:
        """The prompt's ids and its echo come as chunks of their own, before the text."""
        if delta.first and self._token_ids:
            yield _text(delta.index, "", None) | self._prompt_ids(delta)
        if delta.echo is not None:
            yield _text(delta.index, delta.echo.text, self._scores(delta.echo.scores()))
        if self._says(delta, delta.scores):
            yield _text(delta.index, delta.text, self._scores(delta.scores)) | self._ids(delta)
        if delta.finish_reason is not None:
            yield _text(delta.index, "", None) | _ending(delta)

    def choice(self, whole: Delta) -> Json:
        echoed, scores = (whole.echo.text, whole.echo.scores()) if whole.echo else ("", [])
        choice = _text(whole.index, echoed + whole.text, self._scores(scores + whole.scores))
        beside = self._ids(whole) | self._prompt_ids(whole) | _prompt_logprobs(whole.prompt_scores)
        return choice | _ending(whole) | beside

    def beside(self, generation: Generation) -> Json:
        return {}

    def _prompt_ids(self, delta: Delta) -> Json:
        return {"prompt_token_ids": delta.prompt} if self._token_ids else {}

    def _scores(self, scores: list[Score]) -> Json | None:
        """The older shape of log-probabilities. The chosen token is always among ``top_logprobs``; a stop token that
        ended the answer has its place too, at the end of the text, as whoever adds up scores expects.
        """
        if not self._logprobs:
            return None
        return {
            "tokens": [self._name(score.id, score.token) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [self._top(score) for score in scores],
            "text_offset": [score.offset for score in scores],
        }

    def _top(self, score: Score) -> Json | None:
        if score.logprob is None:
            return None
        candidates = [*score.top, (score.id, score.token, score.logprob)]
        return {self._name(token, piece): logprob for token, piece, logprob in candidates}


def _text(index: int, text: str, logprobs: Json | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _prompt_logprobs(scores: PromptScores | None) -> Json:
    return {} if scores is None else {"prompt_logprobs": scores.entries()}


def token_name(token: bytes) -> str:
    """A token as a string; where its bytes are no whole characters, OpenAI's ``bytes:\\xe2\\x80``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
