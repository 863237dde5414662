"""Tokenizer: text to token ids and back, with the text of control tokens under the caller's control.

The tokenizers library does the merging; it is given no control tokens, so ordinary text cannot become one.
"""

from collections.abc import Iterable, Sequence

import tokenizers

from lightwell.errors import InvalidRequest
from lightwell.text.specials import SpecialSplitter
from lightwell.text.vocabulary import Vocabulary
from lightwell.units import Tokens


class Tokenizer:
    """Everything that a model's text needs, read only and safe to use from several threads.

    ``space_first``: a text gets a leading space unless it begins with one or with a control token.
    """

    def __init__(self, model: tokenizers.Tokenizer, vocabulary: Vocabulary, *, space_first: bool = False) -> None:
        self._model = model
        self._space_first = space_first
        self.vocabulary = vocabulary
        self.specials = SpecialSplitter(vocabulary.control)

    def model_json(self) -> str:
        """The merging of text as a tokenizer.json of the tokenizers library, without control tokens."""
        return self._model.to_str()

    @property
    def vocab_size(self) -> Tokens:
        return len(self.vocabulary.pieces)

    @property
    def bos_id(self) -> int | None:
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.vocabulary.eos_id

    @property
    def add_bos(self) -> bool:
        """Whether a prompt of this model begins with BOS."""
        return self.vocabulary.add_bos and self.vocabulary.bos_id is not None

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer: EOS, the file's end-of-turn token, and those of vocabulary.END_OF_TURN."""
        return self.vocabulary.stop_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """The control tokens, which a reader of the answer is not shown."""
        return self.vocabulary.control_ids

    def stop_tokens(self, more: Iterable[int] = ()) -> frozenset[int]:
        """The model's own stop tokens and the user's, which are added to them and never take their place.

        Raises InvalidRequest for an id outside the vocabulary.
        """
        return self.stop_ids | {self._checked(token, "stop_token_ids") for token in more}

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text, nothing added. ``special``: names of control tokens in it become those tokens.

        What the vocabulary has no token for is left out (SmolLM2 lacks a few control characters), as in llama.cpp.
        Raises InvalidRequest when the text is not valid Unicode (a lone surrogate).
        """
        return self.encode_parts(self.specials.split(text) if special else (text,))

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt: control tokens recognised, and one BOS in front if this model wants it."""
        return self.with_one_bos(self.encode(text, special=True))

    def encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Token ids of a text in parts: ids stand for themselves, strings are ordinary text."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            elif part:
                ids += self._encode_plain(part, at_start=not ids)
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of ordinary text that goes on from other tokens: it gets no space in front."""
        return self._encode_plain(text, at_start=False) if text else []

    def with_one_bos(self, ids: list[int]) -> list[int]:
        """The ids beginning with exactly one BOS if this model wants one; otherwise as they are."""
        if not self.add_bos or self.bos_id is None:
            return ids
        written = next((n for n, token in enumerate(ids) if token != self.bos_id), len(ids))
        return [self.bos_id, *ids[written:]]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of a sequence of tokens; bytes that are not UTF-8 become U+FFFD.

        ``continues``: the tokens go on from earlier ones, so a leading space is the text's own.
        Raises InvalidRequest for an id outside the vocabulary.
        """
        pieces = self.pieces(skip_special)
        data = b"".join([pieces[self._checked(token, "tokens")] for token in ids])
        if self.vocabulary.strips_first_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def pieces(self, skip_special: bool, shown: frozenset[int] = frozenset()) -> Sequence[bytes]:
        """The bytes that each token adds to a text, by id. ``shown`` are control tokens that do so in any case."""
        if not skip_special or not shown:
            return self.vocabulary.shown_pieces if skip_special else self.vocabulary.pieces
        pieces = self.vocabulary.shown_pieces.copy()
        for token in shown:
            pieces[token] = self.vocabulary.pieces[token]
        return pieces

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token; for a control token, of its name."""
        return self.vocabulary.pieces[self._checked(token, "tokens")]

    def token_text(self, token: int) -> str:
        """One token as text; bytes that are no whole character become U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        if self._space_first and at_start and not text.startswith((" ", "▁")):
            text = " " + text
        _check_unicode(text)
        ids: list[int] = self._model.encode_batch_fast([text], add_special_tokens=False)[0].ids  # releases the GIL
        return ids

    def _checked(self, token: int, param: str) -> int:
        if 0 <= token < len(self.vocabulary.pieces):
            return token
        last = len(self.vocabulary.pieces) - 1
        raise InvalidRequest(f"Token id {token} is not in the vocabulary: ids go from 0 to {last}.", param=param)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        raise InvalidRequest(f"The text is not valid Unicode: {found}.") from None
