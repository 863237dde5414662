"""Grammars on a small real vocabulary: what the masks allow is what the grammar means, for every schema read."""

import json
import random

import numpy as np
import pytest
from jsonschema import validators

from lightwell.checkpoints import open_checkpoint
from lightwell.sampling.grammar import MOST_BYTES, GrammarVocabulary, Matcher, complaint_about, json_rule
from lightwell.text import load_tokenizer
from tests.tiny_gguf import write_tiny_gguf

EMAIL = r"start: /[a-z]{1,8}@[a-z]{1,8}\.(com|org)/" + "\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")))


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return GrammarVocabulary(tokenizer, tokenizer.vocab_size + 5)


def allowed(matcher: Matcher, vocabulary: GrammarVocabulary, proposed: list[int] = []) -> list[list[int]]:  # noqa: B006
    bits = np.zeros((1 + len(proposed), -(-vocabulary.vocab // 32)), np.uint32)
    matcher.fill(bits, proposed)
    return [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in bits]


def walk(grammar: str, vocabulary: GrammarVocabulary, tokenizer, seed: int) -> tuple[str, bool]:
    """A text of random allowed tokens, which ends as soon as it may and a coin says so; whether it came to an end."""
    matcher, drawn, tokens = Matcher(vocabulary, grammar), random.Random(seed), []
    for _ in range(400):
        [choices] = allowed(matcher, vocabulary)
        if matcher.failed:
            return tokenizer.decode(tokens), False
        ends = [token for token in choices if token in tokenizer.stop_ids]
        if ends and (len(ends) == len(choices) or drawn.random() < 0.5):
            return tokenizer.decode(tokens), True
        tokens.append(drawn.choice([token for token in choices if token not in tokenizer.stop_ids]))
        matcher.advance(tokens[-1:])
        assert not matcher.failed
    return tokenizer.decode(tokens), False


def test_masks_allow_what_may_come_next(vocabulary, tokenizer):
    matcher = Matcher(vocabulary, 'start: "ab" | "cd"\n')
    a, b, c = (tokenizer.encode(letter, special=False)[0] for letter in "abc")
    assert allowed(matcher, vocabulary) == [sorted([a, c])]
    assert not matcher.complete
    matcher.advance([a, b])
    assert matcher.complete
    assert set(allowed(matcher, vocabulary)[0]) == tokenizer.stop_ids
    matcher.advance([min(tokenizer.stop_ids), a])  # whatever comes after the end
    assert set(allowed(matcher, vocabulary)[0]) == tokenizer.stop_ids
    assert not matcher.failed


def test_masks_after_proposed_tokens_leave_the_matcher_where_it_was(vocabulary, tokenizer):
    text = tokenizer.encode("someone@where.com", special=False)
    matcher = Matcher(vocabulary, EMAIL)
    for place in range(len(text)):
        proposed = text[place : place + 4]
        rows = allowed(matcher, vocabulary, proposed)
        ahead = Matcher(vocabulary, EMAIL)
        ahead.advance(text[:place])
        for row, token in zip(rows, [*proposed, None], strict=True):
            assert [row] == allowed(ahead, vocabulary)
            if token is not None:
                ahead.advance([token])
        wrong = allowed(matcher, vocabulary, [tokenizer.encode("#", special=False)[0], *proposed])
        assert wrong[:1] == rows[:1]
        assert wrong[1:] == [[]] * (len(proposed) + 1)  # never written, as nothing is drawn there
        matcher.advance(text[place : place + 1])
    assert matcher.complete


@pytest.mark.parametrize("text", ["start: /(/\n", "start: missing\n", "", "no grammar at all"])
def test_what_is_no_grammar_is_said_in_one_line(text, vocabulary):
    for known in (None, vocabulary):
        complaint = complaint_about(text, known)
        assert complaint
        assert "\n" not in complaint


def test_a_grammar_too_large_is_not_even_read():
    assert str(MOST_BYTES) in complaint_about("start: " + '"a" ' * MOST_BYTES)


HOSTILE = [
    {"type": "integer", "multipleOf": 9999},
    {"type": "string", "pattern": "(a|b)*a(a|b){60}"},
    {"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"},
    {"type": "array", "minItems": 10**9, "items": {"type": "string"}},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=str)
def test_hostile_schemas_are_refused_or_followed_but_never_end_the_process(schema, vocabulary, tokenizer):
    grammar = json_grammar(schema)
    if not complaint_about(grammar, vocabulary):
        matcher = Matcher(vocabulary, grammar)
        allowed(matcher, vocabulary)


def json_grammar(schema: dict) -> str:
    return f"start: {json_rule(schema)}\n"


def corpus(shared) -> list[tuple[str, dict]]:
    folder = shared / "data" / "corpora" / "json-schema"
    found = sorted([*folder.glob("jsonschemabench/*/*.json"), *folder.glob("schemastore/*.schema.json")])
    return [(file.name, json.loads(file.read_text("utf-8"))) for file in found]


def test_what_the_masks_allow_is_valid_for_every_schema_that_is_read(shared, vocabulary, tokenizer):
    """Random walks through the masks, judged by jsonschema."""
    read = ended = 0
    wrong = []
    schemas = corpus(shared)
    for name, schema in schemas:
        grammar = json_grammar(schema)
        if complaint_about(grammar):
            continue
        read += 1
        text, whole = walk(grammar, vocabulary, tokenizer, seed=read)
        if whole:
            ended += 1
            judge = validators.validator_for(schema, default=validators.Draft202012Validator)(schema)
            wrong += [(name, text, error.message) for error in judge.iter_errors(json.loads(text))]
    print(f"{len(schemas)} schemas, {read} read, {ended} walks came to an end, {len(wrong)} wrong")
    assert not wrong
    assert read > len(schemas) / 2
    assert ended > read / 4
