"""The streaming detokenizer: whatever the tokens, joined deltas are the full decode up to the first stop string."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from lightwell.errors import InvalidRequest
from lightwell.text.detokenizer import Detokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import ControlToken, Vocabulary

END = b"<|im_end|>"


def tokenizer_of(pieces: Sequence[bytes], *, strips_first_space: bool = False) -> Tokenizer:
    """A tokenizer whose tokens are the given bytes, and after them one control token."""
    end = ControlToken(len(pieces), END.decode())
    vocabulary = Vocabulary([*pieces, END], (end,), None, end.id, False, frozenset({end.id}), strips_first_space)
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), vocabulary)


def stream(detokenizer: Detokenizer, tokens: Sequence[int]) -> list[str]:
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.finish()]


def cut_at_stop(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """Read a text a character at a time until a stop string is complete; the longest that ends there counts."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@st.composite
def split_texts(draw: st.DrawFn, alphabet: str = "abc🙂é日 ") -> list[bytes]:
    """The bytes of a text, cut anywhere, inside characters too."""
    data = draw(st.text(alphabet=alphabet)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)))) | {0, len(data)})
    return [data[start:end] for start, end in pairwise(cuts)]


STOPS = st.lists(st.text(alphabet="abc🙂", min_size=1, max_size=4), max_size=3)


@given(pieces=split_texts())
def test_joined_deltas_are_the_text_and_never_hold_a_broken_character(pieces: list[bytes]) -> None:
    deltas = stream(Detokenizer(tokenizer_of(pieces)), range(len(pieces)))
    assert "".join(deltas) == b"".join(pieces).decode()
    assert not any("\ufffd" in delta for delta in deltas)


@given(pieces=st.lists(st.binary(max_size=5)))
@example(pieces=[b"\xf0\x9f", b"\x98"])
@example(pieces=[b"\xe6\x97", b"a"])
def test_any_bytes_stream_as_they_decode(pieces: list[bytes]) -> None:
    tokenizer = tokenizer_of(pieces)
    tokens = range(len(pieces))
    text = "".join(stream(Detokenizer(tokenizer), tokens))
    assert text == tokenizer.decode(tokens) == b"".join(pieces).decode("utf-8", "replace")
    assert json.loads(json.dumps(text).encode("utf-8")) == text


@given(pieces=split_texts(), stops=STOPS, include=st.booleans())
@example(pieces=[b"ab", b"ab", b"ac"], stops=["abac"], include=False)
@example(pieces=[b"aab"], stops=["aaab", "ab"], include=False)
def test_the_stream_ends_at_the_first_stop_string(pieces: list[bytes], stops: list[str], include: bool) -> None:
    expected, stop = cut_at_stop(b"".join(pieces).decode(), stops, include)
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=stops, include_stop=include)
    assert "".join(stream(detokenizer, range(len(pieces)))) == expected
    assert detokenizer.stopped_by == stop


@given(pieces=split_texts(), stops=STOPS)
def test_no_delta_shows_what_a_stop_string_may_still_take_back(pieces: list[bytes], stops: list[str]) -> None:
    """After every token, what is out is what would be out if any of the possible stop strings came next."""
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=stops)
    shown, seen = "", b""
    for token, piece in enumerate(pieces):
        shown += detokenizer.feed(token)
        seen += piece
        text = seen.decode("utf-8", "ignore")
        for stop in stops:
            for kept in range(len(stop)):
                if detokenizer.stopped_by is None and text.endswith(stop[:kept]):
                    assert len(shown) <= len(text) - kept


@given(pieces=split_texts("ab"), stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1))
def test_no_more_is_held_back_than_a_stop_string_could_begin_with(pieces: list[bytes], stops: list[str]) -> None:
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=stops)
    shown, seen = "", ""
    for token, piece in enumerate(pieces):
        shown += detokenizer.feed(token)
        seen += piece.decode()
        held = seen[len(shown) :]
        assert detokenizer.stopped_by or not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_split_over_tokens_shows_none_of_it() -> None:
    pieces = [b"Hi", b" Us", b"er", b":", b" more"]
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=["User:"])
    assert stream(detokenizer, range(5)) == ["Hi", " ", "", "", "", ""]
    assert detokenizer.stopped_by == "User:"


def test_what_was_held_for_a_stop_string_that_did_not_come_is_shown() -> None:
    detokenizer = Detokenizer(tokenizer_of([b"Us", b"er"]), stop=["User:"])
    assert stream(detokenizer, range(2)) == ["", "", "User"]
    assert detokenizer.finish() == ""
    assert detokenizer.stopped_by is None


def test_the_stop_string_stays_when_asked_for() -> None:
    detokenizer = Detokenizer(tokenizer_of([b"one;", b"two"]), stop=[";"], include_stop=True)
    assert "".join(stream(detokenizer, range(2))) == "one;"


def test_a_stop_string_may_end_in_the_bytes_that_finish_completes() -> None:
    detokenizer = Detokenizer(tokenizer_of([b"a\xf0\x9f"]), stop=["\ufffd"])
    assert stream(detokenizer, [0]) == ["a", ""]
    assert detokenizer.stopped_by == "\ufffd"


def test_control_tokens_are_silent_unless_asked_for() -> None:
    tokenizer = tokenizer_of([b"a", b"b"])
    assert "".join(stream(Detokenizer(tokenizer), [0, 2, 1])) == "ab"
    assert "".join(stream(Detokenizer(tokenizer, skip_special=False), [0, 2, 1])) == "a<|im_end|>b"


def test_a_control_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = tokenizer_of(["🙂".encode()[:2], "🙂".encode()[2:]])
    assert stream(Detokenizer(tokenizer), [0, 2, 1]) == ["", "", "🙂", ""]


@pytest.mark.parametrize("continues", [True, False])
@given(pieces=split_texts())
def test_the_first_space_is_stripped_as_decode_strips_it(continues: bool, pieces: list[bytes]) -> None:
    tokenizer = tokenizer_of(pieces, strips_first_space=True)
    text = "".join(stream(Detokenizer(tokenizer, continues=continues), [len(pieces), *range(len(pieces))]))
    assert text == tokenizer.decode([len(pieces), *range(len(pieces))], continues=continues)
    assert text == (b"".join(pieces).decode() if continues else b"".join(pieces).decode().removeprefix(" "))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop string is empty"):
        Detokenizer(tokenizer_of([]), stop=["a", ""])


def test_long_and_many_stop_strings_cost_no_more_than_their_text() -> None:
    stops = ["a" * 2000 + "b", *(f"{n}!" for n in range(500))]
    pieces = [b"a"] * 5000 + [b"b"]
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=stops)
    assert "".join(stream(detokenizer, range(len(pieces)))) == "a" * 3000


@given(pieces=split_texts(alphabet="ab "), stops=STOPS, include=st.booleans(), least=st.integers(0, 8))
def test_before_it_may_stop_a_stop_string_is_text(
    pieces: list[bytes], stops: list[str], include: bool, least: int
) -> None:
    """The first stop string that is complete in or after the token that may end the text counts."""
    detokenizer = Detokenizer(tokenizer_of(pieces), stop=stops, include_stop=include)
    text = "".join(detokenizer.feed(token, may_stop=token >= least) for token in range(len(pieces)))
    text += detokenizer.finish()
    whole, free = b"".join(pieces).decode(), len(b"".join(pieces[:least]))
    ends = [(end, stop) for end in range(free + 1, len(whole) + 1) for stop in stops if whole[:end].endswith(stop)]
    if not ends:
        assert (text, detokenizer.stopped_by) == (whole, None)
        return
    end = min(end for end, _ in ends)
    stop = max((stop for at, stop in ends if at == end), key=len)
    assert (text, detokenizer.stopped_by) == (whole[: end if include else end - len(stop)], stop)
