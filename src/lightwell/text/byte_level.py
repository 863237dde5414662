"""Byte-level BPE as GGUF names it: one pre-tokenizer for each kind of ``tokenizer.ggml.pre``.

The patterns are the published ones of each model family; llama.cpp keeps the same (src/llama-vocab.cpp). Each pattern
cuts the text further: what it matches and what lies between matches become words, and merges stay inside words.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from lightwell.text.vocabulary import BYTE_CHARACTERS

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS_AFTER_ANY = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreTokenizer:
    """``patterns`` cut a text into words, one after another. ``whole_words``: a word that is a token needs no merges
    (tiktoken vocabularies). ``add_bos``: what holds when the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenizer((rf"{_LETTERS_AFTER_ANY}|\p{{N}}{{1,3}}|{_REST_AND_SPACES}",), whole_words=True, add_bos=True)
_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": PreTokenizer((rf"{_LETTERS_AFTER_ANY}|\p{{N}}|{_REST_AND_SPACES}",)),
    "refact": _DIGITS_APART,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
}


def build(ids: Mapping[str, int], merges: Sequence[tuple[str, str]], kind: PreTokenizer) -> Tokenizer:
    """A tokenizer of the library from token texts (in byte stand-ins) and merges in order of rank.

    A vocabulary may lack rare bytes (SmolLM2 has no token for U+0004): those leave no trace in the ids, as in
    llama.cpp, and nothing is merged across them. Raises whatever the library raises for merges of texts that are no
    tokens (a plain Exception).
    """
    tokenizer = Tokenizer(models.BPE(dict(ids), list(merges), ignore_merges=kind.whole_words))
    absent = [character for character in BYTE_CHARACTERS if character not in ids]
    tokenizer.pre_tokenizer = pre_tokenizer(kind, absent)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pre_tokenizer(kind: PreTokenizer, absent: Sequence[str] = ()) -> pre_tokenizers.PreTokenizer:
    """Cut into words, turn them into byte stand-ins, and take out the ``absent`` stand-ins."""
    *first, last = kind.patterns
    by_library = last == _GPT2  # the library has this pattern built in, and faster
    patterns = first if by_library else kind.patterns
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    stand_ins = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_library)
    known = [pre_tokenizers.Split(Regex(f"[{re.escape(''.join(absent))}]"), behavior="removed")] if absent else []
    return pre_tokenizers.Sequence([*words, stand_ins, *known])
