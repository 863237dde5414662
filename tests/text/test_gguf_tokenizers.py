"""GGUF tokenizers: the same ids as slow encoders written from the algorithms, and clear refusals."""

import logging
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import (
    CONTROL,
    NORMAL,
    byte_level_metadata,
    byte_stand_ins,
    load,
    sentencepiece_metadata,
    slow_byte_pairs,
    slow_sentencepiece,
)

from lightwell.errors import CheckpointError
from lightwell.text import byte_level
from lightwell.text.tokenizer import Tokenizer


@cache
def load_bytes(absent: str = "") -> Tokenizer:
    return load(byte_level_metadata(absent=absent))


@cache
def load_pieces(space_prefix: bool) -> Tokenizer:
    return load(sentencepiece_metadata(space_prefix=space_prefix))


TEXTS = st.text(alphabet=st.sampled_from("abnthe  \n▁12'日本é🙂\u0004<>|")) | st.text()


def words(kind: str, text: str) -> list[str]:
    """A text as the pre-tokenizer of a kind cuts it."""
    cut = byte_level.pre_tokenizer(byte_level.PRE_TOKENIZERS[kind]).pre_tokenize_str(text)
    return [bytes(byte_level.BYTE_CHARACTERS[character] for character in word).decode() for word, _ in cut]


@given(text=TEXTS)
def test_byte_level_ids_are_those_of_byte_pair_encoding(text: str) -> None:
    metadata = byte_level_metadata()
    expected = [token for word in words("smollm", text) for token in slow_byte_pairs(byte_stand_ins(word), metadata)]
    assert load_bytes().encode(text, special=False) == expected


@given(text=st.text(alphabet="ab\u0004\u0001 t"))
def test_bytes_without_a_token_leave_no_trace_and_are_not_merged_across(text: str) -> None:
    metadata = byte_level_metadata(absent="\u0004\u0001")
    expected = [token for word in words("smollm", text) for token in slow_byte_pairs(byte_stand_ins(word), metadata)]
    assert load_bytes("\u0004\u0001").encode(text, special=False) == expected


@pytest.mark.parametrize("space_prefix", [True, False])
@given(text=TEXTS)
def test_sentencepiece_ids_are_those_of_joining_by_score(space_prefix: bool, text: str) -> None:
    metadata = sentencepiece_metadata(space_prefix=space_prefix)
    tokenizer = load_pieces(space_prefix)
    assert tokenizer.encode(text, special=False) == slow_sentencepiece(text, metadata)


@pytest.mark.parametrize("space_prefix", [True, False])
@given(text=TEXTS.filter(lambda text: "▁" not in text))
def test_decoding_gives_the_text_back(space_prefix: bool, text: str) -> None:
    prefix = " " if space_prefix and text else ""
    for tokenizer, encoded in ((load_bytes(), text), (load_pieces(space_prefix), prefix + text)):
        ids = tokenizer.encode(text, special=False)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == encoded.encode()


def test_a_space_goes_before_every_stretch_of_text_where_the_file_asks_for_it() -> None:
    tokenizer = load_pieces(True)
    the = tokenizer.encode("the", special=False)
    assert tokenizer.encode("</s>the<s>the", special=True) == [2, *the, 1, *the]
    assert tokenizer.token_text(the[0]).startswith(" ")
    assert tokenizer.encode("", special=True) == []


def test_a_text_that_continues_keeps_its_leading_space() -> None:
    tokenizer = load_pieces(True)
    ids = tokenizer.encode("the", special=False)
    assert (tokenizer.decode(ids), tokenizer.decode(ids, continues=True)) == ("the", " the")
    assert load_pieces(False).decode(ids) == " the"


def test_bytes_of_tokens_of_every_type() -> None:
    metadata = sentencepiece_metadata()
    tokenizer, tokens = load_pieces(True), metadata["tokenizer.ggml.tokens"]
    assert tokenizer.token_bytes(tokens.index("<0x0A>")) == b"\n"
    assert tokenizer.token_bytes(tokens.index("<think>")) == b"<think>"
    assert tokenizer.token_bytes(tokens.index("</s>")) == b"</s>"
    byte_level_tokenizer, tokens = load_bytes(), byte_level_metadata()["tokenizer.ggml.tokens"]
    assert byte_level_tokenizer.token_bytes(tokens.index("Ġ")) == b" "
    assert byte_level_tokenizer.token_bytes(tokens.index("[PAD]")) == b""  # unused: it means nothing
    assert byte_level_tokenizer.token_text(tokens.index("ð")) == "\ufffd"


def test_user_defined_tokens_are_found_in_any_text() -> None:
    for tokenizer in (load_bytes(), load_pieces(True)):
        think = tokenizer.encode("<think>", special=False)
        assert [tokenizer.token_text(token) for token in think] == ["<think>"]
        assert think[0] not in tokenizer.special_ids


def test_literal_byte_tokens_are_ordinary_text() -> None:
    tokenizer = load_pieces(True)
    ids = tokenizer.encode("<0x0A>", special=True)
    assert len(ids) > 1
    assert tokenizer.decode(ids) == "<0x0A>"


# What the published patterns make of texts that tell them apart; each text joined from its words.
SPLITS = {
    "gpt-2": [
        ["I", "'m", " don", "'t", " WE", "'", "LL"],
        ["12345", " 67", "."],
        ["a", "  ", " b", "\n\n", " c", "  "],
        ["x", "!\"'", "s", " ", "\t", "y"],
        ["日本", "。", "²", "é"],
    ],
    "smollm": [
        ["1", "2", "3", " ", "4", "."],
        ["a", "  ", " b", "²", "ⅷ", "٣"],
        ["I", "'ve", " x", "1", "y"],
    ],
    "llama-bpe": [
        ["I", "'m", " don", "'T", " WE", "'LL"],
        ["123", "45", " ", "678", "9"],
        ["f", "(x", "):\n\n", "   ", " return", " x", "**", "2"],
        ["a", "\n\n", "\tb"],
        ["x", "  \n\n", " y", "   "],
        ["日本", "。\n"],
    ],
    "qwen2": [
        ["1", "2", "3", " ", "4"],
        ["I", "'M", " x", ".\n", " ", " y"],
        ["(x", ")", "   \n", "z"],
    ],
    "default": [
        ["a", "==", "b", "(", "c", ")"],
        ["123", "4", "."],
        ["I", "'", "m", " ok"],
    ],
}


@pytest.mark.parametrize(("kind", "expected"), [(kind, split) for kind, splits in SPLITS.items() for split in splits])
def test_words_of_each_kind(kind: str, expected: list[str]) -> None:
    assert words(kind, "".join(expected)) == expected


# The same patterns in Python's own syntax, for texts in which \p{L} is any letter and \p{N} any digit.
_L, _N = r"[^\W\d_]", r"\d"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{_L}+| ?{_N}+| ?(?:(?!{_L}|{_N})\S)+|\s+(?!\S)|\s+"
_PREFIX = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:(?!{_L}|{_N})[^\r\n])?{_L}+"
_SUFFIX = rf" ?(?:(?!{_L}|{_N})\S)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": _GPT2,
    "llama-bpe": rf"{_PREFIX}|{_N}{{1,3}}|{_SUFFIX}",
    "qwen2": rf"{_PREFIX}|{_N}|{_SUFFIX}",
}


@pytest.mark.parametrize("kind", PATTERNS)
@given(text=st.text(alphabet=st.sampled_from("abé日'sSdDlLtT019 \t\r\n_.,(=🙂")))
def test_words_are_those_of_the_pattern(kind: str, text: str) -> None:
    assert words(kind, text) == re.findall(PATTERNS[kind], text)


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "starcoder"])
def test_words_agree_with_ids_of_vocabularies_that_are_not_here(kind: str, shared: Path) -> None:
    """llama.cpp's ids for some texts: a word has the same ids wherever it stands, so words tell each other's ids."""
    folder = shared / "data/corpora/tokenizer-vectors"
    texts = (folder / "common.inp").read_text().split("\n__ggml_vocab_test__\n")[:-1]
    lines = (folder / f"{kind}.out").read_text().splitlines()
    known: dict[str, list[str]] = {}
    for _ in range(4):  # each round tells more words
        for text, line in zip(texts, lines, strict=True):
            learn(words(kind, text), line.split(), known)
    assert len(known) > 20


def learn(cut: list[str], ids: list[str], known: dict[str, list[str]]) -> None:
    """Take known words off both ends of a text; a single word that is left then has the ids that are left."""
    while cut and cut[0] in known:
        expected, ids = ids[: len(known[cut[0]])], ids[len(known[cut[0]]) :]
        assert expected == known[cut.pop(0)]
    while cut and cut[-1] in known:
        at = len(ids) - len(known[cut[-1]])
        expected, ids = ids[at:], ids[:at]
        assert expected == known[cut.pop()]
    assert len(cut) <= len(ids)
    if len(cut) <= 1:
        known.update((word, ids) for word in cut)
    elif len(cut) == len(ids):
        known.update((word, [token]) for word, token in zip(cut, ids, strict=True))


def test_llama_bpe_takes_a_word_that_is_a_token_whole() -> None:
    metadata = byte_level_metadata("llama-bpe")
    tokens = [*metadata["tokenizer.ggml.tokens"], "zebra"]  # no merges lead to it
    types = [*metadata["tokenizer.ggml.token_type"], NORMAL]
    longer = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert load(metadata | longer).encode("zebra", special=False) == [len(tokens) - 1]
    assert len(load(metadata | longer | {"tokenizer.ggml.pre": "qwen2"}).encode("zebra", special=False)) > 1


@pytest.mark.parametrize(("pre", "add_bos"), [("llama-bpe", True), ("qwen2", False)])
def test_whether_bos_is_added_when_the_file_does_not_say(pre: str, add_bos: bool) -> None:
    metadata = dict(byte_level_metadata(pre))
    del metadata["tokenizer.ggml.add_bos_token"]
    assert load(metadata).add_bos == add_bos


def test_a_missing_pre_tokenizer_kind_is_a_warning_and_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load(byte_level_metadata(None))
    assert "'tokenizer.ggml.pre' is missing" in caplog.text
    assert "'default'" in caplog.text
    text = "a==b 1234"
    assert tokenizer.encode(text, special=False) == load(byte_level_metadata("default")).encode(text, special=False)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("bytes", {"tokenizer.ggml.pre": "klingon"}, "'klingon'.*llama-bpe.*smollm"),
    ("bytes", {"tokenizer.ggml.model": "bert"}, "'bert'.*'gpt2'.*'llama'"),
    ("bytes", {"tokenizer.ggml.model": None}, "'tokenizer.ggml.model' is missing"),
    ("bytes", {"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
    ("bytes", {"tokenizer.ggml.tokens": []}, "'tokenizer.ggml.tokens' is empty"),
    ("bytes", {"tokenizer.ggml.tokens": [1, 2]}, "'tokenizer.ggml.tokens' is not an array of str"),
    ("bytes", {"tokenizer.ggml.token_type": [1]}, "'tokenizer.ggml.token_type' has 1 entries for"),
    ("bytes", {"tokenizer.ggml.merges": None}, "'tokenizer.ggml.merges' is missing"),
    ("bytes", {"tokenizer.ggml.merges": ["ab"]}, "has the entry 'ab'"),
    ("bytes", {"tokenizer.ggml.merges": ["nothere a"]}, "does not fit the tokens"),
    ("bytes", {"tokenizer.ggml.merges": ["z z"]}, "does not fit the tokens: 'zz' is none of them"),
    ("bytes", {"tokenizer.ggml.eos_token_id": 10**6}, "'tokenizer.ggml.eos_token_id' is 1000000"),
    ("bytes", {"tokenizer.ggml.add_bos_token": "yes"}, "'tokenizer.ggml.add_bos_token' is 'yes'"),
    ("bytes", {"tokenizer.ggml.pre": 7}, "'tokenizer.ggml.pre' is 7"),
    ("pieces", {"tokenizer.ggml.scores": None}, "'tokenizer.ggml.scores' is missing"),
    ("pieces", {"tokenizer.ggml.token_type": None}, "'tokenizer.ggml.token_type' is missing"),
    ("pieces", {"tokenizer.ggml.scores": [0.5]}, "'tokenizer.ggml.scores' has 1 entries for"),
]


@pytest.mark.parametrize(("kind", "change", "message"), WRONG)
def test_what_cannot_be_read_is_named(kind: str, change: dict[str, Any], message: str) -> None:
    metadata = byte_level_metadata() if kind == "bytes" else sentencepiece_metadata()
    with pytest.raises(CheckpointError, match=f"small.gguf: .*{message}"):
        load(metadata | change)


def test_without_types_the_named_tokens_are_control_tokens() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.token_type": None}
    assert load(metadata).special_ids == {0, 1, 2}  # BOS and EOS by their keys, <|endoftext|> by its name


def test_every_end_of_turn_token_stops_and_is_a_control_token() -> None:
    metadata = byte_level_metadata()
    names = ["<|eot_id|>", "<end_of_turn>", "bye"]
    tokens = [*metadata["tokenizer.ggml.tokens"], *names]
    types = [*metadata["tokenizer.ggml.token_type"], CONTROL, NORMAL, NORMAL]
    eot = len(tokens) - 1
    longer = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.eot_token_id": eot}
    tokenizer = load(metadata | longer)
    assert tokenizer.stop_ids == {0, 2, eot - 2, eot - 1, eot}
    assert tokenizer.stop_ids <= tokenizer.special_ids


def test_rows_of_the_model_without_a_token_mean_nothing() -> None:
    tokenizer = load(byte_level_metadata(), vocab=500)
    assert tokenizer.vocab_size == 500
    assert tokenizer.decode([499, 499]) == ""
