"""The ids of the real models' tokenizers are llama.cpp's, one for one.

llama_cpp_ids.json records what llama.cpp gives for some nasty strings (``special``: control tokens recognised;
``plain``: not, where that differs). The shared corpus has many more strings, recorded the same way.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.text import Detokenizer, Tokenizer, load_tokenizer

HERE = Path(__file__).parent
MODELS = pytest.mark.parametrize("model", ["smollm2", "gemma3"], indirect=True)
NAMES = {"smollm2": "smollm2", "gemma3": "gemma3_270m"}  # as the corpus calls them
SPACE = {"smollm2": "▁", "gemma3": " "}  # what U+2581 in a text comes back as

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, load_tokenizer(open_checkpoint(request.getfixturevalue(request.param)))


def recorded(cases: list[dict[str, Any]], name: str) -> list[tuple[str, bool, list[int]]]:
    """Text, whether control tokens count, and llama.cpp's ids."""
    by_model = [(case["text"], case[NAMES[name]]) for case in cases]
    with_special = [(text, True, ids["special"]) for text, ids in by_model]
    return with_special + [(text, False, ids.get("plain", ids["special"])) for text, ids in by_model]


def check(model: tuple[str, Tokenizer], cases: list[dict[str, Any]]) -> None:
    name, tokenizer = model
    for text, special, expected in recorded(cases, name):
        assert tokenizer.encode(text, special=special) == expected, (text, special)


@MODELS
def test_nasty_strings(model: tuple[str, Tokenizer]) -> None:
    check(model, json.loads((HERE / "llama_cpp_ids.json").read_text()))


@MODELS
def test_the_whole_corpus(model: tuple[str, Tokenizer], shared: Path) -> None:
    cases = json.loads((shared / "data/corpora/tokenizer-vectors/llama_cpp_ids.json").read_text())
    assert len(cases) == 591
    check(model, cases)


@MODELS
def test_nasty_strings_come_back_whole_and_streamed(model: tuple[str, Tokenizer]) -> None:
    name, tokenizer = model
    for case in json.loads((HERE / "llama_cpp_ids.json").read_text()):
        ids = tokenizer.encode(case["text"], special=False)
        text = case["text"].replace("▁", SPACE[name])
        assert tokenizer.decode(ids) == text
        detokenizer = Detokenizer(tokenizer)
        assert "".join([*map(detokenizer.feed, ids), detokenizer.finish()]) == text


def test_special_tokens_of_smollm2(smollm2: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(smollm2))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.stop_ids == {0, 2}  # <|endoftext|>, <|im_end|>
    assert tokenizer.vocab_size == 49152


def test_special_tokens_of_gemma(gemma3: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(gemma3))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (2, 1, True)
    assert tokenizer.stop_ids == {1, 106}  # <eos>, <end_of_turn>
    assert tokenizer.encode_prompt("<bos>Hello world") == tokenizer.encode_prompt("Hello world") == [2, 9259, 1902]
    assert tokenizer.decode([2, 9259, 1902]) == "Hello world"
