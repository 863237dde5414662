"""Echo: a prompt as the beginning of the answers to it: its text, and where asked for the scores of its tokens."""

from itertools import accumulate

from lightwell.events import PromptScored, TokenLogprobs
from lightwell.gateway.scores import Score, characters, scored
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Tokens


class Echo:
    """Shared by the choices of one prompt: the engine scores it for the first, before any of them begins.

    A prompt that came as text is shown as it came (``text``); one that came as ids is decoded.
    """

    def __init__(
        self, tokenizer: Tokenizer, tokens: list[int], text: str | None, *, with_scores: bool, skip_special: bool
    ) -> None:
        self.with_scores = with_scores
        self.text = tokenizer.decode(tokens, skip_special=skip_special) if text is None else text
        self._tokenizer, self._tokens = tokenizer, tokens
        self._pieces = _pieces(tokenizer, tokens, text, skip_special)
        self._logprobs: list[TokenLogprobs] = []  # from the second token on

    def take(self, event: PromptScored) -> None:
        """What was scored before may come again: a restarted engine begins anew."""
        at: Tokens = event.start - 1
        self._logprobs[at : at + len(event.scores)] = event.scores

    @property
    def complete(self) -> bool:
        return not self.with_scores or len(self._logprobs) == len(self._tokens) - 1

    def scores(self) -> list[Score]:
        """One for each token, the first without a log-probability; none where they were not asked for."""
        if not self.with_scores:
            return []
        end = len(self.text)  # what the tokenizer lost of the text may put the sum off, never past the end
        offsets = [min(offset, end) for offset in accumulate(map(characters, self._pieces), initial=0)]
        return [
            scored(self._tokenizer, token, logprobs, offset)
            for token, logprobs, offset in zip(self._tokens, [None, *self._logprobs], offsets[:-1], strict=True)
        ]


def _pieces(tokenizer: Tokenizer, tokens: list[int], text: str | None, skip_special: bool) -> list[bytes]:
    """What each token adds to the prompt's text. Names of control tokens in a text are shown; an added BOS is not."""
    by_id = tokenizer.pieces(skip_special and text is None)
    pieces = [by_id[token] for token in tokens]
    if text is not None and tokens[0] == tokenizer.bos_id and not text.startswith(pieces[0].decode()):
        pieces[0] = b""
    if tokenizer.vocabulary.strips_first_space:
        first = next((n for n, piece in enumerate(pieces) if piece), 0)
        pieces[first] = pieces[first].removeprefix(b" ")
    return pieces
