"""Echo: a prompt as the beginning of the answers to it: its text, and where asked for the scores of its tokens."""

from itertools import accumulate

from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.scores import Score, characters, scored
from lightwell.text.tokenizer import Tokenizer


class Echo:
    """Shared by the choices of one prompt, which the engine scores before any of them begins (``prompt_scores``).

    A prompt that came as text is shown as it came (``text``); one that came as ids is decoded.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: list[int],
        text: str | None,
        *,
        prompt_scores: PromptScores | None,
        skip_special: bool,
    ) -> None:
        self.prompt_scores = prompt_scores
        self.text = tokenizer.decode(tokens, skip_special=skip_special) if text is None else text
        self._tokenizer = tokenizer
        self._pieces = _pieces(tokenizer, tokens, text, skip_special)

    @property
    def complete(self) -> bool:
        return self.prompt_scores is None or self.prompt_scores.complete

    def scores(self) -> list[Score]:
        """One for each token, the first without a log-probability; none where they were not asked for."""
        if (prompt := self.prompt_scores) is None:
            return []
        end = len(self.text)  # what the tokenizer lost of the text may put the sum off, never past the end
        offsets = [min(offset, end) for offset in accumulate(map(characters, self._pieces), initial=0)]
        return [
            scored(self._tokenizer, token, logprobs, offset)
            for token, logprobs, offset in zip(prompt.tokens, prompt.logprobs(), offsets[:-1], strict=True)
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
