"""Tokenizers from a Hugging Face folder: tokenizer.json, and what tokenizer_config.json says about special tokens.

The tokenizers library reads tokenizer.json itself; here control tokens are taken out of its hands, and the bytes of
every token are worked out from the decoder that the file names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, pre_tokenizers

from lightwell.errors import CheckpointError
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import (
    ControlToken,
    Vocabulary,
    byte_level_piece,
    byte_token,
    find_stop_ids,
    sentencepiece_piece,
)
from lightwell.units import Tokens


def load_hf_tokenizer(path: Path, config_path: Path | None, *, vocab: Tokens) -> Tokenizer:
    """Read ``tokenizer.json`` and, where there is one, ``tokenizer_config.json``; ``vocab`` is the model's rows.

    Raises CheckpointError when a file cannot be read, or the tokenizer is of a kind that is not served here.
    """
    model = _read_tokenizer(path)
    config = _read_json(config_path) if config_path else {}
    ids: dict[str, int] = model.get_vocab(with_added_tokens=True)
    control = _control_tokens(path, model.get_added_tokens_decoder())
    bos, eos = (_named(config, key, ids) for key in ("bos_token", "eos_token"))
    vocabulary = Vocabulary(
        pieces=_pieces(path, model, ids, vocab),
        control=control,
        bos_id=bos,
        eos_id=eos,
        add_bos=_adds_bos(config, model, bos),
        stop_ids=find_stop_ids({token.text: token.id for token in control}, [eos]),
        strips_first_space="Strip" in _kinds(model.decoder),
    )
    space_first = _take_space_first(model)
    model.encode_special_tokens = True  # from here on the library reads control tokens' names as ordinary text
    return Tokenizer(model, vocabulary, space_first=space_first)


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(path, f"is not a tokenizer that can be read: {error}") from None


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(path, "is not a JSON object")
    return content


def _control_tokens(path: Path, added: Mapping[int, AddedToken]) -> tuple[ControlToken, ...]:
    special = [(token, entry) for token, entry in sorted(added.items()) if entry.special]
    if odd := next((entry.content for _, entry in special if entry.single_word), None):
        raise CheckpointError(path, f"token {odd!r} is special only as a word of its own, which is not served here")
    return tuple(ControlToken(token, entry.content, entry.lstrip, entry.rstrip) for token, entry in special)


def _named(config: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> int | None:
    """The id of a token that the configuration names, as a string or as {"content": string}."""
    entry = config.get(key)
    text = entry.get("content") if isinstance(entry, dict) else entry
    return ids.get(text) if isinstance(text, str) else None


def _adds_bos(config: Mapping[str, Any], model: tokenizers.Tokenizer, bos: int | None) -> bool:
    """What the configuration states; where it is silent, what the file's own post-processor does."""
    stated = config.get("add_bos_token")
    return stated if isinstance(stated, bool) else bos is not None and bos in model.encode("").ids


def _kinds(part: Any) -> set[str]:
    """The kinds of a decoder's or pre-tokenizer's parts, by the names that tokenizer.json gives them."""
    if part is None:
        return set()
    state = json.loads(part.__getstate__())
    return {child["type"] for child in (state, *state.get("decoders", ()), *state.get("pretokenizers", ()))}


def _pieces(path: Path, model: tokenizers.Tokenizer, ids: Mapping[str, int], vocab: Tokens) -> list[bytes]:
    kinds = _kinds(model.decoder)
    if not kinds & {"ByteLevel", "ByteFallback"}:
        found = ", ".join(sorted(kinds)) or "nothing"
        raise CheckpointError(path, f"its tokens are decoded by {found}: ByteLevel and ByteFallback are read here")
    decode = byte_level_piece if "ByteLevel" in kinds else _byte_fallback_piece
    added = model.get_added_tokens_decoder()
    pieces = [b""] * max(vocab, max(ids.values(), default=-1) + 1)
    for text, token in ids.items():
        pieces[token] = text.encode() if token in added else decode(text)
    return pieces


def _byte_fallback_piece(text: str) -> bytes:
    return byte_token(text) or sentencepiece_piece(text)


def _take_space_first(model: tokenizers.Tokenizer) -> bool:
    """Whether only the very first word gets a space before it. The library would do so for each part of a text that
    is cut at control tokens, so this is then done here instead."""
    part = model.pre_tokenizer
    if not isinstance(part, pre_tokenizers.Metaspace) or part.prepend_scheme != "first":
        return False
    part.prepend_scheme = "never"
    model.pre_tokenizer = part
    return True
