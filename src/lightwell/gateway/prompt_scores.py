"""Prompt scores: the log-probabilities of a prompt's own tokens, which the engine says in parts."""

from typing import Any

from lightwell.events import PromptScored, TokenLogprobs
from lightwell.gateway.scores import finite
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Tokens


class PromptScores:
    """Shared by the choices of one prompt, as the engine scores it for the first. ``shown``: how many of the likeliest
    tokens beside each are shown; the engine may be asked for more."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[int], shown: int) -> None:
        self.tokens = tokens
        self._tokenizer, self._shown = tokenizer, shown
        self._logprobs: list[TokenLogprobs] = []  # from the second token on

    def take(self, event: PromptScored) -> None:
        """What was scored before may come again: a restarted engine begins anew."""
        at: Tokens = event.start - 1
        self._logprobs[at : at + len(event.scores)] = event.scores

    @property
    def complete(self) -> bool:
        return len(self._logprobs) == len(self.tokens) - 1

    def logprobs(self) -> list[TokenLogprobs | None]:
        """One for each token, None for the first, which follows nothing."""
        shown = self._shown
        return [None, *(TokenLogprobs(each.chosen, each.top_ids[:shown], each.top[:shown]) for each in self._logprobs)]

    def entries(self) -> list[dict[str, Any] | None]:
        """As vLLM writes them: for each token an object by token ids, its own first. The rank of a token that is not
        among the likeliest is not known here, and null."""
        pairs = zip(self.tokens, self.logprobs(), strict=True)
        return [None if logprobs is None else self._entry(token, logprobs) for token, logprobs in pairs]

    def _entry(self, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        ranks = {candidate: rank for rank, candidate in enumerate(logprobs.top_ids, 1)}
        values = {token: logprobs.chosen} | dict(zip(logprobs.top_ids, logprobs.top, strict=True))
        return {
            str(candidate): {
                "logprob": finite(value),
                "rank": ranks.get(candidate),
                "decoded_token": self._tokenizer.token_bytes(candidate).decode(errors="replace"),
            }
            for candidate, value in values.items()
        }
