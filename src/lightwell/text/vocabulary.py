"""A vocabulary: the exact bytes of every token, which tokens control the model, and which of them end an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

# Tokens that end a turn in the model families in use, by their text. A model may end its turn with a token that its
# file does not call EOS (Llama 3 names <|end_of_text|> and answers with <|eot_id|>), so all of these stop an answer
# wherever the vocabulary has them; llama.cpp keeps a list like this one for the same reason.
END_OF_TURN = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
)


@dataclass(frozen=True)
class ControlToken:
    """A token that steers the model; its text counts as this token only where special text is asked for.

    ``lstrip`` and ``rstrip``: white space before or after it in a text belongs to it and is dropped.
    """

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """``pieces[id]`` are the bytes that a token adds to a text (for control tokens: of its name); ids that the
    model has room for but that mean nothing are empty. ``stop_ids`` end an answer: EOS, and every end-of-turn token.
    ``strips_first_space``: encoding puts a space before a text, so decoding a whole text takes one away (Llama 2).
    """

    pieces: list[bytes]
    control: tuple[ControlToken, ...]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    stop_ids: frozenset[int]
    strips_first_space: bool = False

    @cached_property
    def control_ids(self) -> frozenset[int]:
        return frozenset(token.id for token in self.control)

    @cached_property
    def shown_pieces(self) -> list[bytes]:
        """``pieces``, with nothing for control tokens."""
        shown = self.pieces.copy()
        for token in self.control_ids:
            shown[token] = b""
        return shown


def find_stop_ids(ids: Mapping[str, int], stated: Iterable[int | None]) -> frozenset[int]:
    """The tokens that end an answer: those that the file states, and those with a well-known name."""
    named = (ids.get(name) for name in END_OF_TURN)
    return frozenset(token for token in (*stated, *named) if token is not None)


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: a visible Latin-1 character is itself, the others follow from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


BYTE_CHARACTERS = _byte_characters()
_SPACE = "\u0120"  # stands for a space
_NO_BYTE = {chr(code): "\uffff" for code in range(256) if chr(code) not in BYTE_CHARACTERS}
_TO_LATIN1 = str.maketrans(_NO_BYTE | {character: chr(byte) for character, byte in BYTE_CHARACTERS.items()})


def byte_level_piece(text: str) -> bytes:
    """The bytes of a byte-level BPE token. A text that is not made of byte stand-ins means itself."""
    if text.isascii():  # stand-ins for themselves, or none at all
        return text.encode()
    if text[0] == _SPACE:  # half of a vocabulary; the way below takes ten times as long
        word = text[1:]
        if word.isascii() and word.isprintable() and " " not in word:
            return b" " + word.encode()
    try:
        return text.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def sentencepiece_piece(text: str) -> bytes:
    """The bytes of a SentencePiece token, where U+2581 stands for a space."""
    return text.replace("▁", " ").encode()


def byte_token(text: str) -> bytes | None:
    """The byte that a fallback token such as ``<0x0A>`` stands for; None for any other text."""
    if len(text) != 6 or not text.startswith("<0x") or text[5] != ">":
        return None
    try:
        return bytes.fromhex(text[3:5])
    except ValueError:
        return None
