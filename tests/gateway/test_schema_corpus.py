"""Schemas met in practice: each gives valid answers, or is refused with what is not supported."""

import json
import random

from jsonschema import validators

from lightwell.errors import InvalidRequest
from lightwell.gateway.schemas import json_term
from lightwell.sampling.grammar import Grammars
from tests.gateway.fake_engine import byte_tokenizer
from tests.sampling.walks import walk


def corpus(shared) -> list[tuple[str, dict]]:
    folder = shared / "data" / "corpora" / "json-schema"
    found = sorted([*folder.glob("jsonschemabench/*/*.json"), *folder.glob("schemastore/*.schema.json")])
    return [(file.name, json.loads(file.read_text("utf-8"))) for file in found]


def test_what_the_masks_allow_is_valid_for_every_schema_that_is_read(shared):
    """Random walks through the masks, judged by jsonschema."""
    tokenizer = byte_tokenizer()
    grammars, drawn = Grammars(lambda: tokenizer), random.Random(1)
    read = ended = 0
    wrong = []
    schemas = corpus(shared)
    for name, schema in schemas:
        try:
            matcher = grammars.start(f"start: {json_term(schema, 'schema')}").result()
        except InvalidRequest:
            continue
        read += 1
        tokens, whole = walk(matcher, tokenizer, drawn)
        if whole:
            ended += 1
            judge = validators.validator_for(schema, default=validators.Draft202012Validator)(schema)
            value = json.loads(bytes(tokens))
            wrong += [(name, value, error.message) for error in judge.iter_errors(value)]
    print(f"{len(schemas)} schemas, {read} read, {ended} walks came to an end, {len(wrong)} wrong")
    assert not wrong
    assert read > len(schemas) * 0.8
    assert ended > read / 2
