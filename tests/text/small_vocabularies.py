"""Small trained vocabularies as GGUF metadata, and slow encoders written from the algorithms' descriptions."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightwell.text.gguf_tokenizers import load_gguf_tokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import BYTE_CHARACTERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
STAND_INS = {byte: character for character, byte in BYTE_CHARACTERS.items()}
CORPUS = (
    "the cat and the hat sat on the mat; a banana bandana, ababab aaaa\n\n  if x == 10:\n    return café\n"
    "日本語の日本 日本語 les élèves préfèrent l'été, 12 1234 100 don't won't 🙂🙂🙂 the   end. "
)


def byte_stand_ins(text: str) -> str:
    return "".join(STAND_INS[byte] for byte in text.encode())


def words_of(text: str) -> list[str]:
    """Cut before each run of spaces that a letter follows."""
    return re.findall(r" *[^ ]+| +", text)


def train(words: Iterable[str], merges: int) -> list[tuple[str, str]]:
    """Byte-pair encoding (Sennrich et al., arXiv:1508.07909): the most frequent pair is joined, again and again."""
    counted = Counter(words)
    symbols = {word: list(word) for word in counted}
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in symbols.items():
            for pair in pairwise(parts):
                pairs[pair] += counted[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        learned.append(best)
        symbols = {word: join_everywhere(parts, best) for word, parts in symbols.items()}
    return learned


def join_everywhere(parts: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@cache
def byte_level_metadata(pre: str | None = "smollm", absent: str = "") -> dict[str, Any]:
    """A "gpt2" vocabulary: control tokens, a user-defined one, all bytes but those of ``absent``, trained merges."""
    merges = train([byte_stand_ins(word) for word in words_of(CORPUS)], 60)
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [character for character in BYTE_CHARACTERS if character not in byte_stand_ins(absent)]
    normal = list(dict.fromkeys([*letters, *("".join(pair) for pair in merges)]))
    types = [CONTROL] * len(control) + [USER_DEFINED] + [NORMAL] * len(normal) + [UNUSED]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*control, "<think>", *normal, "[PAD]"],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    return metadata if pre is None else metadata | {"tokenizer.ggml.pre": pre}


@cache
def sentencepiece_metadata(*, space_prefix: bool = True, add_bos: bool = True) -> dict[str, Any]:
    """A "llama" vocabulary: control and byte tokens, a user-defined one, letters and trained tokens with scores."""
    made = ["".join(pair) for pair in train((word.replace(" ", "▁") for word in words_of(CORPUS)), 60)]
    letters = sorted(set(CORPUS.replace(" ", "▁")))
    control = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    normal = list(dict.fromkeys([*made, *letters]))
    tokens = [*control, *fallback, "<think>", *normal]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, *[NORMAL] * len(normal)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 260 + [-float(rank) for rank in range(len(normal))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def load(metadata: Mapping[str, Any], vocab: int = 0) -> Tokenizer:
    return load_gguf_tokenizer(Path("small.gguf"), metadata, vocab=vocab)


def slow_byte_pairs(word: str, metadata: Mapping[str, Any]) -> list[int]:
    """Byte-pair encoding of one word in stand-ins: join the best-ranked neighbours, leftmost first, to the end."""
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(metadata["tokenizer.ggml.merges"])}
    parts = list(word)
    while True:
        pairs = list(pairwise(parts))
        best = min((pair for pair in pairs if pair in ranks), key=ranks.__getitem__, default=None)
        if best is None:
            return [ids[part] for part in parts if part in ids]
        at = pairs.index(best)
        parts[at : at + 2] = ["".join(best)]


def slow_sentencepiece(text: str, metadata: Mapping[str, Any]) -> list[int]:
    """SentencePiece's BPE: join the neighbours that make the token of highest score, leftmost first, while there are
    any; what is no token in the end becomes its bytes. Control and user-defined tokens are not looked for."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    ids = {text: token for token, text in enumerate(tokens)}
    parts = list(("▁" if metadata["tokenizer.ggml.add_space_prefix"] and text else "") + text.replace(" ", "▁"))
    while True:
        joins = [left + right for left, right in pairwise(parts)]
        made = [at for at, join in enumerate(joins) if join in ids and types[ids[join]] == NORMAL]
        if not made:
            break
        at = max(made, key=lambda at: (scores[ids[joins[at]]], -at))
        parts[at : at + 2] = [joins[at]]
    encoded: list[int] = []
    for part in parts:
        encoded += [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return encoded
