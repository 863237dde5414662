"""The one streaming detokenizer: tokens in, text out, never part of a character and never part of a stop string."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

from lightwell.text.stops import StopStrings
from lightwell.text.tokenizer import Tokenizer

_Utf8Decoder = getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one answer into text as they come.

    The pieces that ``feed`` and ``finish`` return, joined, are ``Tokenizer.decode`` of all tokens up to where the
    first stop string is complete (it is left out, or kept with ``include_stop``); bytes that are not UTF-8 become
    U+FFFD there and here alike. Only what may yet become a character or a stop string is held back.
    ``skip_special``: control tokens add nothing to the text, but for those in ``shown``. ``continues``: the answer goes
    on from a prompt, so a leading space is its own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
        continues: bool = True,
    ) -> None:
        self.pieces = tokenizer.pieces(skip_special, shown)  # what each token adds to the text, by id
        self._decoder = _Utf8Decoder("replace")
        self._strips_space = tokenizer.vocabulary.strips_first_space and not continues
        self._searches = bool(stop)
        self._first_characters = frozenset(text[:1] for text in stop)
        self._stops = StopStrings(stop)
        self._state = self._stops.start
        self._include_stop = include_stop
        self._held = ""
        self.stopped_by: str | None = None  # the stop string that ended the text

    def feed(self, token: int, *, may_stop: bool = True) -> str:
        """Take one token and return the text that is now certain, often none; none at all after a stop string.

        ``may_stop`` False: a stop string that this token completes is text like any other.
        """
        data = self.pieces[token]
        if self._strips_space and data:
            data, self._strips_space = data.removeprefix(b" "), False
        return self._release(self._decoder.decode(data), may_stop)

    def finish(self) -> str:
        """The answer is over: return what was held back."""
        rest = self._release(self._decoder.decode(b"", True), True)
        rest, self._held = rest + self._held, ""
        return rest

    def _release(self, text: str, may_stop: bool) -> str:
        """Return the part of the text that no stop string can take back any more, and hold the rest."""
        if not self._searches:
            return text
        if self.stopped_by is not None:
            return ""
        if not self._held and self._first_characters.isdisjoint(text):
            return text
        return self._search(text, may_stop)

    def _search(self, text: str, may_stop: bool) -> str:
        advance, state = self._stops.advance, self._state
        for end, character in enumerate(text, len(self._held) + 1):
            state = advance(state, character)
            if state.stop is not None and may_stop:
                return self._stop(self._held + text, end, state.stop)
        self._state = state
        text = self._held + text
        certain = len(text) - state.depth
        self._held = text[certain:]
        return text[:certain]

    def _stop(self, text: str, end: int, stop: str) -> str:
        self.stopped_by, self._held = stop, ""
        return text[: end if self._include_stop else end - len(stop)]
