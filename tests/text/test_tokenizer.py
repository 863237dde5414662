"""Tokenizer: control tokens only where they are asked for, one BOS, stop tokens that add up, and checked input."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import byte_level_metadata, load, sentencepiece_metadata

from lightwell.errors import InvalidRequest
from lightwell.text.specials import SpecialSplitter
from lightwell.text.vocabulary import ControlToken

BYTES = load(byte_level_metadata())
PIECES = load(sentencepiece_metadata())
NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MIXED = st.lists(st.sampled_from([*NAMES, "<|im_", "end|>", "a", " the", "\n", "<"])).map("".join)


@given(text=MIXED)
def test_names_of_control_tokens_count_only_when_asked_for(text: str) -> None:
    assert not set(BYTES.encode(text, special=False)) & BYTES.special_ids
    found = [token for token in BYTES.encode(text, special=True) if token in BYTES.special_ids]
    assert found == [NAMES.index(name) for name in re.findall(r"<\|(?:endoftext|im_start|im_end)\|>", text)]


@given(text=MIXED)
def test_decoding_with_control_tokens_gives_the_text_back(text: str) -> None:
    for special in (True, False):
        assert BYTES.decode(BYTES.encode(text, special=special), skip_special=False) == text
    assert BYTES.decode(BYTES.encode(text, special=True)) == re.sub("|".join(map(re.escape, NAMES)), "", text)


@given(names=st.sets(st.text(alphabet="ab<>", min_size=1, max_size=5), max_size=6), text=st.text(alphabet="ab<>"))
def test_the_longest_name_at_the_leftmost_place_wins(names: set[str], text: str) -> None:
    ordered = sorted(names, key=lambda name: (-len(name), name))
    splitter = SpecialSplitter(ControlToken(token, name) for token, name in enumerate(ordered))
    expected: list[str | int] = []
    rest = text
    while rest:
        token = next((token for token, name in enumerate(ordered) if rest.startswith(name)), None)
        if token is not None:
            expected.append(token)
            rest = rest[len(ordered[token]) :]
        elif expected and isinstance(last := expected[-1], str):
            expected[-1], rest = last + rest[0], rest[1:]
        else:
            expected, rest = [*expected, rest[0]], rest[1:]
    assert list(splitter.split(text)) == expected


def test_white_space_that_belongs_to_a_control_token_is_dropped() -> None:
    splitter = SpecialSplitter([ControlToken(1, "<l>", lstrip=True), ControlToken(2, "<r>", rstrip=True)])
    assert list(splitter.split("a <l> b <r> \n c")) == ["a", 1, " b ", 2, "c"]
    assert list(splitter.split("  <l><r>  ")) == [1, 2]


def test_exactly_one_bos_before_a_prompt() -> None:
    the = PIECES.encode("the", special=False)
    for text in ("the", "<s>the", "<s><s>the"):
        assert PIECES.encode_prompt(text) == [1, *the]
    assert PIECES.encode_prompt("") == [1]


def test_no_bos_where_the_model_wants_none() -> None:
    assert not BYTES.add_bos
    assert BYTES.encode_prompt("the") == BYTES.encode("the", special=True)
    assert BYTES.encode_prompt("<|im_start|>the")[0] == BYTES.bos_id


def test_users_stop_tokens_are_added_to_the_models_own() -> None:
    assert BYTES.stop_ids == {0, 2}
    assert BYTES.stop_tokens([7]) == {0, 2, 7}
    with pytest.raises(InvalidRequest, match="id 100000 is not in the vocabulary") as refused:
        BYTES.stop_tokens([100000])
    assert refused.value.param == "stop_token_ids"


@pytest.mark.parametrize("token", [-1, BYTES.vocab_size])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match=f"id {token} is not in the vocabulary"):
        BYTES.decode([token])
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        BYTES.token_bytes(token)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"U\+D800 at character 2"):
        BYTES.encode("ab\ud800", special=True)


@given(text=st.text())
def test_parts_of_tokens_join_to_the_text(text: str) -> None:
    assert b"".join(map(BYTES.token_bytes, BYTES.encode(text, special=False))) == text.encode()
