"""Answer: one choice being written. Engine events in, deltas of text out, and no I/O.

A non-streamed answer is the same deltas, joined.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from lightwell.engine.request import Request
from lightwell.errors import EngineDied, InvalidRequest
from lightwell.events import Embedded, Finished, PromptScored, Sampled
from lightwell.gateway.echo import Echo
from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.scores import HeldScores, Score, finite
from lightwell.gateway.tools.parser import CallDelta, Parser, merged
from lightwell.host.client import Output
from lightwell.text.detokenizer import Detokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Tokens

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class Delta:
    """What one choice says next. ``first`` once, at its beginning; ``finish_reason`` once, at its end.

    ``prompt``: its token ids, with the first delta; ``prompt_scores``, where they are asked for, likewise, and known at
    the end. ``echo``: the prompt as text, once, before the answer's.
    ``tokens``: those drawn, of which some may have no text yet. ``stop_reason``: the stop string, or the client's own
    stop token, that ended the answer.
    """

    index: int
    text: str
    calls: list[CallDelta] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    finish_detail: str = ""  # more about the reason, such as "repetition"
    first: bool = False
    prompt: list[int] = field(default_factory=list)
    prompt_scores: PromptScores | None = None
    echo: Echo | None = None
    tokens: list[int] = field(default_factory=list)
    stop_reason: str | int | None = None


def join(before: Delta, after: Delta) -> Delta:
    """Two deltas of a choice, one after the other, as one."""
    before.text += after.text
    before.calls = merged([*before.calls, *after.calls])
    before.scores += after.scores
    before.tokens += after.tokens
    before.prompt = before.prompt or after.prompt
    before.echo = before.echo or after.echo
    before.prompt_scores = before.prompt_scores or after.prompt_scores
    before.first = before.first or after.first
    before.finish_reason, before.stop_reason = after.finish_reason, after.stop_reason
    before.finish_detail = after.finish_detail
    return before


class Answer:
    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: Tokenizer,
        detokenizer: Detokenizer,
        *,
        echo: Echo | None = None,
        prompt_scores: PromptScores | None = None,
        named_stops: frozenset[int] = frozenset(),
        parser: Parser | None = None,
    ) -> None:
        """``named_stops``: the stop tokens that the client named, which are told as the reason. ``parser``: tells tool
        calls apart from the text; once it is full the answer ends."""
        self.index, self.request, self.prompt_scores = index, request, prompt_scores
        self.output_tokens: Tokens = 0
        self.logprob = 0.0  # of all its tokens together, where the engine says it
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.finish_detail = ""
        self.embedding = b""  # the vector as little-endian float32, where it is one that was asked for
        self._detokenizer, self._parser = detokenizer, parser
        self._named_stops = named_stops
        self._echo, self._echoed = echo, echo is None
        self._scores: HeldScores | None = None
        if request.sampling.logprobs is not None:
            self._scores = HeldScores(tokenizer, detokenizer.pieces, len(echo.text) if echo else 0)
        self._begun = False

    @property
    def stopped_by_string(self) -> bool:
        return self._detokenizer.stopped_by is not None

    @property
    def ended_here(self) -> bool:
        """By what was read in the text, which the engine does not know of."""
        return self.stopped_by_string or (self._parser is not None and self._parser.full)

    def feed(self, events: list[Output]) -> Delta:
        """Take what the engine said since the last call. After a stop string the rest of the events is left aside."""
        delta = Delta(self.index, "")
        if not self._begun:
            delta.first, delta.prompt, self._begun = True, self.request.tokens, True
            delta.prompt_scores = self.prompt_scores
        written = ""
        for event in events:
            text = self._take(event, delta.tokens)
            written += text
            self._add(text, delta)
            if self.finish_reason is not None:
                break
        if self._scores is not None:
            ended = self.finish_reason is not None
            delta.scores = self._scores.release(written, ended=ended, cut=self.stopped_by_string)
        delta.finish_reason, delta.stop_reason = self.finish_reason, self.stop_reason
        delta.finish_detail = self.finish_detail
        if not self._echoed and self._echo is not None and self._echo.complete:
            delta.echo, self._echoed = self._echo, True
        return delta

    def _add(self, text: str, delta: Delta) -> None:
        """The next text as content and calls. An answer that called ended for that, unless it was cut off."""
        if self._parser is None:
            delta.text += text
            return
        content, calls = self._parser.feed(text)
        if self.finish_reason is not None:
            rest, more = self._parser.finish()
            content, calls = content + rest, calls + more
        if self.finish_reason != "length" and (self._parser.full or (self.finish_reason and self._parser.whole)):
            self.finish_reason = "tool_calls"
        delta.text += content
        delta.calls = merged([*delta.calls, *map(self._with_id, calls)])

    def _with_id(self, call: CallDelta) -> CallDelta:
        """Each call's id follows from the request's: a client sends it back with the result."""
        if call.name is not None:
            call.id = "call_" + blake2b(f"{self.request.id} {call.index}".encode(), digest_size=12).hexdigest()
        return call

    def _take(self, event: Output, drawn: list[int]) -> str:
        match event:
            case PromptScored():
                if self._echo is not None and self._echo.prompt_scores is not None:
                    self._echo.prompt_scores.take(event)
                if self.prompt_scores is not None:
                    self.prompt_scores.take(event)
                return ""
            case Embedded():
                self.embedding = event.values
                return ""
            case Finished():
                self.finish_reason, self.finish_detail = _finish_reason(event), event.detail
                return self._detokenizer.finish()
            case Sampled():
                drawn.append(event.token)
                return self._take_token(event)

    def _take_token(self, event: Sampled) -> str:
        self.output_tokens += 1
        stops = event.token in self.request.stop_tokens
        if self._scores is not None and event.logprobs is not None:
            self.logprob += finite(event.logprobs.chosen)
            self._scores.add(event, shown=not stops)
        if stops:  # it ends the answer and is not part of it; Finished comes next
            self.stop_reason = event.token if event.token in self._named_stops else None
            return ""
        text = self._detokenizer.feed(event.token, may_stop=self.output_tokens >= self.request.min_tokens)
        if self.stopped_by_string:
            self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped_by
        return text


def _finish_reason(event: Finished) -> FinishReason:
    match event.reason:
        case "stop":
            return "stop"
        case "length":
            return "length"
        case "error":
            raise InvalidRequest(f"The answer was ended: {event.detail}.")
        case _:
            raise EngineDied("The engine aborted this request.")


def usage(answers: list[Answer], cached_tokens: Tokens) -> dict[str, Any]:
    """OpenAI's usage object over all answers, shown or not. Answers to the same prompt share it: it counts once."""
    prompt = sum(len(answer.request.tokens) for answer in answers if not answer.request.fork_of)
    output = sum(answer.output_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
