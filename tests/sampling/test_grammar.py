"""A matcher allows what its grammar allows, after any tokens, looked at ahead or not; and ends, or says why not."""

import json
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.errors import InvalidRequest
from lightwell.sampling.grammar import MAX_GRAMMAR_BYTES, Grammars, Matcher, allows, grammar_vocabulary
from lightwell.text.tokenizer import Tokenizer
from tests.gateway.fake_engine import EOS, TURN, TURN_END, byte_tokenizer
from tests.sampling.walks import mask, walk

VOCAB, WORDS = 260, 9
TOKENIZER = byte_tokenizer()
GRAMMARS = Grammars(lambda: TOKENIZER)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "é"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
OF_ALL_KINDS = [
    f"start: %json {json.dumps(PERSON)}",
    r"start: /(ab|cd)*x?[0-9]{1,3}/",
    'start: "yes" | "yesterday" | "no"',
    'start: "(" start ")" | "x"\n',
    'start: "grüße" " " /[^\\x00-\\x7f]{1,4}/',
]


def matcher(grammar: str) -> Matcher:
    return GRAMMARS.start(grammar).result()


def after(grammar: str, text: str | bytes) -> list[int]:
    """What may follow a text."""
    found = matcher(grammar)
    found.advance(list(text.encode() if isinstance(text, str) else text))
    assert not found.error
    return mask(found, VOCAB)


def test_only_what_the_grammar_allows_may_come_next():
    choice = 'start: "yes" | "yesterday" | "no"'
    assert after(choice, "") == [ord("n"), ord("y")]
    assert after(choice, "yes") == [ord("t"), EOS, TURN_END]
    assert after(choice, "no") == [EOS, TURN_END]


def test_control_tokens_are_not_text():
    assert TURN not in after("start: /(.|\n)*/".replace("\n", "\\n"), "a")
    assert after('start: "<|end|>"', "") == [ord("<")]
    assert after("start: <|turn|>", "") == [TURN]


def test_what_ends_an_answer_is_no_text_even_where_the_vocabulary_calls_it_ordinary():
    plain = byte_tokenizer()
    vocabulary = grammar_vocabulary(plain)
    assert set(vocabulary.ends) <= set(vocabulary.special)
    assert EOS not in after('start: "a" /[^b]*/ "b"', "a")


def test_a_model_whose_answers_cannot_end_has_no_grammars():
    tokenizer = byte_tokenizer()
    endless = Tokenizer.__new__(Tokenizer)
    endless.__dict__.update(tokenizer.__dict__)
    endless.vocabulary = type(tokenizer.vocabulary)(tokenizer.vocabulary.pieces, (), None, None, False, frozenset())
    with pytest.raises(InvalidRequest, match="no token that ends"):
        Grammars(lambda: endless).start('start: "a"').result()


def test_an_answer_is_finished_where_nothing_can_follow():
    found = matcher('start: "ab" | "abc"')
    for text, finished in (("a", False), ("b", False), ("c", True)):
        found.advance([ord(text)])
        assert found.finished is finished
    ended = matcher("start: /x+/")
    ended.advance([ord("x")])
    assert not ended.finished
    ended.advance([EOS])
    assert ended.finished


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: nothing", "unknown name"),
        ("start: /(/", "invalid regex"),
        ("start: /a(?=b)/", "look-around"),
        ('start: %json {"type": "foo"}', "Invalid type: foo"),
        ('start: %json {"uniqueItems": true}', "uniqueItems"),
        ('start: %json {"$ref": "http://example.com/schema"}', "example.com"),
        ("no grammar at all", "Expected"),
        ("", "Empty grammar"),
        ("start: <|unheard_of|>", "unknown special token"),
        ('start: "' + "a" * MAX_GRAMMAR_BYTES + '"', "bytes long"),
    ],
)
def test_what_cannot_be_compiled_says_why_in_one_line(grammar, reason):
    with pytest.raises(InvalidRequest) as caught:
        matcher(grammar)
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 700


def test_a_token_that_is_not_allowed_is_an_error_that_stays():
    found = matcher('start: "ab"')
    found.advance([ord("x")])
    assert found.error
    assert not found.finished
    assert found.fill(np.empty((1, WORDS), np.uint32)) == 0
    found.advance([ord("a")])
    assert found.error


def test_a_grammar_that_gets_too_complex_ends_with_an_error():
    names = {f"p{i}": {} for i in range(3000)}
    found = matcher(f"start: %json {json.dumps({'type': 'object', 'properties': names})}")
    assert mask(found, VOCAB) == [ord("{")]
    found.advance([ord("{")])
    assert "items" in found.error
    assert not found.finished
    assert mask(found, VOCAB) == []


@pytest.mark.parametrize("byte", [*range(32), 0x7F])
def test_text_that_a_tokenizer_would_leave_out_is_still_written_or_refused(byte):
    """Forced text goes through the tokenizer; one that drops a character must not drop it from the answer."""
    pieces = TOKENIZER.vocabulary.pieces

    class Dropping(type(TOKENIZER)):
        def encode_continuation(self, text):
            return [token for token in super().encode_continuation(text) if pieces[token] != bytes([byte])]

    dropping = Dropping(TOKENIZER._model, TOKENIZER.vocabulary)
    found = Grammars(lambda: dropping).start(f"start: {json.dumps(f'a{chr(byte)}b')}").result()
    tokens, ended = walk(found, dropping, random.Random(0))
    assert ended
    assert bytes(tokens) == b"a" + bytes([byte]) + b"b"


@given(grammar=st.sampled_from(OF_ALL_KINDS), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=60, deadline=None)
def test_masks_depend_on_nothing_but_the_tokens_so_far(grammar, seed, data):
    """With tokens proposed or not, right or wrong, looked at or not, resumed or not: the same masks."""
    tokens, _ = walk(matcher(grammar), TOKENIZER, random.Random(seed), 40)
    one_by_one, proposing = matcher(grammar), matcher(grammar)
    for place in range(len(tokens) + 1):
        resumed = matcher(grammar)
        resumed.advance(tokens[:place])
        expected = mask(one_by_one, VOCAB)
        assert mask(resumed, VOCAB) == expected
        assert resumed.finished == one_by_one.finished == proposing.finished
        proposed = tokens[place : place + data.draw(st.integers(0, 4))]
        proposed += data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2))
        rows = np.empty((1 + len(proposed), WORDS), np.uint32)
        written = proposing.fill(rows, proposed)
        assert [token for token in range(VOCAB) if allows(rows[0], token)] == expected
        followed = 0
        for ahead, token in enumerate(proposed):
            if not allows(rows[ahead], token) or token in (EOS, TURN_END):
                break
            followed += 1
            further = matcher(grammar)
            further.advance(tokens[:place] + proposed[: ahead + 1])
            assert mask(further, VOCAB) == [t for t in range(VOCAB) if allows(rows[ahead + 1], t)]
        assert written == 1 + followed
        for one in (one_by_one, proposing):
            one.advance(tokens[place : place + 1])


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_walk_through_a_schema_is_valid(seed):
    tokens, ended = walk(matcher(OF_ALL_KINDS[0]), TOKENIZER, random.Random(seed))
    assert ended
    person = json.loads(bytes(tokens))
    assert {"name", "age"} <= person.keys() <= PERSON["properties"].keys()
    assert len(person["name"]) <= 8
    assert 0 <= person["age"] <= 150


def test_an_error_that_only_proposed_tokens_led_to_leaves_the_answer_alone():
    """The rows before it count. Without proposals the answer would have met the error later, or never."""
    names = {f"p{i}": {} for i in range(3000)}
    too_complex = json.dumps({"type": "object", "properties": names})
    found = matcher(f'start: "x" ("y" | %json {too_complex})')
    rows = np.empty((3, WORDS), np.uint32)
    assert found.fill(rows, [ord("x"), ord("{")]) == 2
    assert not found.error
    assert allows(rows[0], ord("x"))
    assert allows(rows[1], ord("{"))
    found.advance([ord("x")])
    assert found.fill(rows, [ord("{"), ord("x")]) == 1
    assert found.fill(rows, [ord("y"), EOS]) == 2
    found.advance([ord("y")])
    assert mask(found, VOCAB) == [EOS, TURN_END]


def test_grammars_are_compiled_once_in_a_thread_and_loaded_with_the_first():
    loaded: list[str] = []

    def load() -> Tokenizer:
        loaded.append(threading.current_thread().name)
        return TOKENIZER

    grammars = Grammars(load)
    assert loaded == []
    first, second = grammars.start('start: "ab"').result(), grammars.start('start: "ab"').result()
    first.advance([ord("a")])
    assert mask(first, VOCAB) == [ord("b")]
    assert mask(second, VOCAB) == [ord("a")]
    assert len(loaded) == 1
    assert loaded[0] != threading.current_thread().name
