"""Tokenizers from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece ("llama") vocabularies.

The keys are those of ggml's docs/gguf.md. Token ids equal llama.cpp's, for texts with and without special tokens.
"""

import hashlib
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from lightwell.errors import CheckpointError
from lightwell.text import byte_level, sentencepiece
from lightwell.text.cache import load_or_build
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import (
    END_OF_TURN,
    ControlToken,
    Vocabulary,
    byte_level_piece,
    byte_token,
    find_stop_ids,
    sentencepiece_piece,
)
from lightwell.units import Tokens

_log = logging.getLogger(__name__)
_PREFIX = "tokenizer.ggml."
_RECIPE = 1  # counts the changes to how a SentencePiece tokenizer is built
_SLOW_TO_BUILD = 1 << 16  # tokens; above this a SentencePiece vocabulary is kept on disk once built


class TokenType(IntEnum):
    """GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_CONTROL_TYPES = frozenset((TokenType.CONTROL, TokenType.UNKNOWN))
_NORMAL, _USER_DEFINED = int(TokenType.NORMAL), int(TokenType.USER_DEFINED)  # found faster than in the class


@dataclass(frozen=True)
class Metadata:
    """The ``tokenizer.ggml.*`` keys of one file, checked as they are read; faults are CheckpointErrors."""

    path: Path
    values: Mapping[str, Any]
    vocab: Tokens  # the model's rows: ids beyond the tokens mean nothing

    def fault(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(self.path, f"key '{_PREFIX}{key}' {what}")

    def text(self, key: str) -> str | None:
        value = self.values.get(_PREFIX + key)
        if value is None or isinstance(value, str):
            return value
        raise self.fault(key, f"is {value!r}: a string is needed")

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(_PREFIX + key, default)
        if isinstance(value, bool):
            return value
        raise self.fault(key, f"is {value!r}: a boolean is needed")

    def token(self, key: str) -> int | None:
        """A token's id."""
        value = self.values.get(_PREFIX + key)
        if value is None or (isinstance(value, int) and 0 <= value < len(self.tokens)):
            return value
        raise self.fault(key, f"is {value!r}: the vocabulary has {len(self.tokens)} tokens")

    def array(self, key: str, item: type, count: int | None = None) -> Sequence[Any] | None:
        values = self.values.get(_PREFIX + key)
        if values is None:
            return None
        if not isinstance(values, list) or not set(map(type, values)) <= {item}:
            raise self.fault(key, f"is not an array of {item.__name__}")
        if count is not None and len(values) != count:
            raise self.fault(key, f"has {len(values)} entries for {count} tokens")
        return values

    def needed(self, key: str, item: type, count: int | None = None) -> Sequence[Any]:
        values = self.array(key, item, count)
        if values is None:
            raise self.fault(key, "is missing: this file has no usable tokenizer")
        return values

    @cached_property
    def tokens(self) -> Sequence[str]:
        tokens = self.needed("tokens", str)
        if not tokens:
            raise self.fault("tokens", "is empty")
        return tokens

    @cached_property
    def types(self) -> Sequence[int]:
        """Token types; where the file has none, the tokens that other keys name are control tokens."""
        stated = self.array("token_type", int, len(self.tokens))
        if stated is not None:
            return stated
        named = {self.token(f"{name}_token_id") for name in ("bos", "eos", "unknown")}
        return [TokenType.CONTROL if token in named else TokenType.NORMAL for token in range(len(self.tokens))]

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        stated = [self.token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
        names = frozenset(END_OF_TURN)
        known = {text: token for token, text in enumerate(self.tokens) if text in names}
        return find_stop_ids(known, stated)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Control and unknown tokens, and every token that ends an answer, whatever type the file gives it."""
        typed = [t for t, kind in enumerate(self.types) if kind in _CONTROL_TYPES]
        return self.stop_ids.union(typed)

    @cached_property
    def control_names(self) -> frozenset[str]:
        return frozenset(self.tokens[token] for token in self.control_ids)

    def ordinary_ids(self) -> dict[str, int]:
        """The tokens that ordinary text may become, by text."""
        control = self.control_ids
        return {text: token for token, text in enumerate(self.tokens) if token not in control}


def load_gguf_tokenizer(path: Path, values: Mapping[str, Any], *, vocab: Tokens) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describe; ``vocab`` is the number of the model's rows.

    Raises CheckpointError for missing or contradictory keys and for kinds that are not read here.
    """
    metadata = Metadata(path, values, vocab)
    kind = metadata.text("model")
    if kind == "gpt2":
        return _load_byte_level(metadata)
    if kind == "llama":
        return _load_sentencepiece(metadata)
    if kind is None:
        raise metadata.fault("model", "is missing: this file has no tokenizer")
    raise metadata.fault("model", f"is {kind!r}: 'gpt2' (byte-level BPE) and 'llama' (SentencePiece) are read here")


def _load_byte_level(metadata: Metadata) -> Tokenizer:
    kind = _pre_tokenizer(metadata)
    merges = [_merge(metadata, line) for line in metadata.needed("merges", str)]
    ids = metadata.ordinary_ids()
    made = next(filterfalse(ids.__contains__, map("".join, merges)), None)
    if made is not None:  # the library would panic
        raise metadata.fault("merges", f"does not fit the tokens: {made!r} is none of them")
    try:
        model = byte_level.build(ids, merges, kind)
    except Exception as error:  # the library raises nothing narrower
        raise metadata.fault("merges", f"does not fit the tokens: {error}") from None
    vocabulary = _vocabulary(metadata, byte_level_piece, add_bos=kind.add_bos)
    return Tokenizer(_with_user_defined(model, metadata), vocabulary)


def _pre_tokenizer(metadata: Metadata) -> byte_level.PreTokenizer:
    name = metadata.text("pre")
    if name is None:
        _log.warning(
            "%s: key 'tokenizer.ggml.pre' is missing, so words are split as 'default'. If this model was trained with "
            "another split its answers are worse than they should be: convert it again with a current converter.",
            metadata.path,
        )
        name = "default"
    if name not in byte_level.PRE_TOKENIZERS:
        known = ", ".join(sorted(byte_level.PRE_TOKENIZERS))
        raise metadata.fault("pre", f"is {name!r}: {known} are known, and any other would give wrong token ids")
    return byte_level.PRE_TOKENIZERS[name]


def _merge(metadata: Metadata, line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")  # no byte stand-in is a space
    if not left or not right:
        raise metadata.fault("merges", f"has the entry {line!r}: two tokens with a space between are needed")
    return left, right


def _load_sentencepiece(metadata: Metadata) -> Tokenizer:
    metadata.needed("token_type", int, len(metadata.tokens))  # without it byte tokens look like any other
    scores = metadata.needed("scores", float, len(metadata.tokens))
    space_prefix = metadata.flag("add_space_prefix", True)
    unknown = metadata.token("unknown_token_id")
    ids = metadata.ordinary_ids()
    if unknown is not None:
        ids[metadata.tokens[unknown]] = unknown
    made = [t for t, kind in enumerate(metadata.types) if kind in (TokenType.NORMAL, TokenType.USER_DEFINED)]

    def build() -> tokenizers.Tokenizer:
        text = None if unknown is None else metadata.tokens[unknown]
        model = sentencepiece.build(ids, scores, made, text, space_prefix=space_prefix)
        return _with_user_defined(model, metadata)

    slow = len(metadata.tokens) > _SLOW_TO_BUILD
    model = load_or_build(_fingerprint(metadata), build) if slow else build()
    vocabulary = _vocabulary(metadata, sentencepiece_piece, add_bos=True, strips_first_space=space_prefix)
    return Tokenizer(model, vocabulary)


def _with_user_defined(model: tokenizers.Tokenizer, metadata: Metadata) -> tokenizers.Tokenizer:
    """Add the tokens that are found in any text before it is cut into words, such as <think> or runs of spaces."""
    typed = (text for text, kind in zip(metadata.tokens, metadata.types, strict=True) if kind == _USER_DEFINED)
    names = [text for text in typed if text and text not in metadata.control_names]
    model.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    return model


def _vocabulary(
    metadata: Metadata, decode: Callable[[str], bytes], *, add_bos: bool, strips_first_space: bool = False
) -> Vocabulary:
    pieces = [_piece(text, kind, decode) for text, kind in zip(metadata.tokens, metadata.types, strict=True)]
    return Vocabulary(
        pieces=pieces + [b""] * (metadata.vocab - len(pieces)),
        control=tuple(ControlToken(token, metadata.tokens[token]) for token in sorted(metadata.control_ids)),
        bos_id=metadata.token("bos_token_id"),
        eos_id=metadata.token("eos_token_id"),
        add_bos=metadata.flag("add_bos_token", add_bos),
        stop_ids=metadata.stop_ids,
        strips_first_space=strips_first_space,
    )


def _piece(text: str, kind: int, decode: Callable[[str], bytes]) -> bytes:
    if kind == _NORMAL:
        return decode(text)
    if kind == TokenType.BYTE:
        return byte_token(text) or text.encode()
    return b"" if kind == TokenType.UNUSED else text.encode()


def _fingerprint(metadata: Metadata) -> str:
    """A name for everything that the built tokenizer depends on, the library's version and this recipe's included."""
    numbers = [*metadata.types, *metadata.needed("scores", float)]
    small = [
        _RECIPE,
        tokenizers.__version__,
        metadata.flag("add_space_prefix", True),
        metadata.token("unknown_token_id"),
    ]
    digest = hashlib.sha256(repr(small).encode())
    digest.update(array("d", numbers).tobytes())
    digest.update("\0".join(metadata.tokens).encode())
    return digest.hexdigest()[:32]
