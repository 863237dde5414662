"""Tokenizers from Hugging Face folders: the ids of the library itself and of the same vocabulary in GGUF."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import byte_level_metadata, load, sentencepiece_metadata
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from lightwell.errors import CheckpointError
from lightwell.text import load_tokenizer
from lightwell.text.sentencepiece import rebuild_merges
from lightwell.text.tokenizer import Tokenizer
from tests.tiny import tiny_checkpoint

Made = tuple[tokenizers.Tokenizer, Tokenizer]  # as the library has it, and as it was read here

TEXTS = st.lists(
    st.sampled_from(["the", " ", "  ", "cat", "<s>", "</s>", "<think>", "日本", "🙂", "\n", "12", "<|im_end|>"])
)


def add_names(model: tokenizers.Tokenizer, metadata: dict[str, Any]) -> None:
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    for text, kind in kinds:
        if kind in (2, 3, 4):
            model.add_tokens([AddedToken(text, special=kind != 4, normalized=False)])


def byte_level_model() -> tokenizers.Tokenizer:
    metadata = byte_level_metadata("gpt-2")
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    model = tokenizers.Tokenizer(models.BPE(ids, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    add_names(model, metadata)
    return model


def sentencepiece_model(form: str) -> tokenizers.Tokenizer:
    """A Llama 2 tokenizer in its two forms: a normalizer prefixes every stretch, or a Metaspace the first."""
    metadata = sentencepiece_metadata()
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    made = [token for token, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind in (1, 4)]
    merges = list(rebuild_merges(ids, metadata["tokenizer.ggml.scores"], made))
    model = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if form == "prepend":
        model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)
    model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    add_names(model, metadata)
    return model


def read(model: tokenizers.Tokenizer, config: dict[str, Any] | None = None, vocab: int = 0) -> Tokenizer:
    checkpoint = tiny_checkpoint()
    with TemporaryDirectory() as name:
        files = {"tokenizer.json": Path(name) / "tokenizer.json"}
        model.save(str(files["tokenizer.json"]))
        if config is not None:
            files["tokenizer_config.json"] = Path(name) / "tokenizer_config.json"
            files["tokenizer_config.json"].write_text(json.dumps(config))
        return load_tokenizer(replace(checkpoint, tokenizer=files, spec=replace(checkpoint.spec, vocab=vocab)))


@cache
def byte_level() -> Made:
    names = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
    return byte_level_model(), read(byte_level_model(), names)


@cache
def prepend() -> Made:
    return sentencepiece_model("prepend"), read(
        sentencepiece_model("prepend"), {"bos_token": "<s>", "eos_token": "</s>"}
    )


@cache
def metaspace() -> Made:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    return sentencepiece_model("metaspace"), read(sentencepiece_model("metaspace"), config)


KINDS = pytest.mark.parametrize("kind", [byte_level, prepend, metaspace])


@KINDS
@given(parts=TEXTS)
def test_ids_with_special_tokens_are_the_librarys(kind: Callable[[], Made], parts: list[str]) -> None:
    model, tokenizer = kind()
    text = "a" + "".join(parts)  # a user-defined token at the very start would get no space from the library
    assert tokenizer.encode(text, special=True) == model.encode(text, add_special_tokens=False).ids


@KINDS
@given(parts=TEXTS)
def test_decoding_is_the_librarys(kind: Callable[[], Made], parts: list[str]) -> None:
    model, tokenizer = kind()
    ids = tokenizer.encode("".join(parts), special=True)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special=skip) == model.decode(ids, skip_special_tokens=skip)


@given(text=TEXTS.map("".join) | st.text())
def test_ids_are_those_of_the_same_vocabulary_in_gguf(text: str) -> None:
    for read_here, gguf in (
        (byte_level()[1], byte_level_metadata("gpt-2")),
        (prepend()[1], sentencepiece_metadata()),
    ):
        same = load_once(json.dumps(gguf))
        for special in (True, False):
            assert read_here.encode(text, special=special) == same.encode(text, special=special)


@cache
def load_once(metadata: str) -> Tokenizer:
    return load(json.loads(metadata))


def test_what_the_folder_says_about_special_tokens() -> None:
    tokenizer = byte_level()[1]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.stop_ids == {0, 2}  # EOS, and <|endoftext|> by its name
    assert tokenizer.special_ids == {0, 1, 2}
    assert prepend()[1].encode_prompt("the")[0] == 1  # not in the configuration: the post-processor adds BOS


def test_add_bos_token_in_the_configuration_has_the_last_word() -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    assert not read(sentencepiece_model("prepend"), config).add_bos


def test_without_a_configuration_there_is_no_bos() -> None:
    tokenizer = read(byte_level_model())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (None, None, False)


def test_rows_of_the_model_without_a_token_mean_nothing() -> None:
    tokenizer = read(byte_level_model(), vocab=1000)
    assert tokenizer.vocab_size == 1000
    assert tokenizer.decode([999]) == ""


def test_white_space_around_control_tokens_follows_the_file() -> None:
    model = byte_level_model()
    model.add_special_tokens([AddedToken("<|user|>", special=True, normalized=False, rstrip=True)])
    text = "a <|user|> \n the"
    assert read(model).encode(text, special=True) == model.encode(text, add_special_tokens=False).ids


def word_piece() -> tokenizers.Tokenizer:
    model = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    model.decoder = decoders.WordPiece()
    return model


def single_word() -> tokenizers.Tokenizer:
    model = byte_level_model()
    model.add_special_tokens([AddedToken("<odd>", special=True, single_word=True)])
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [(word_piece, "decoded by WordPiece"), (single_word, "'<odd>' is special only as a word")],
)
def test_kinds_that_are_not_served_are_refused(model: Callable[[], tokenizers.Tokenizer], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(model())


def test_damaged_files_are_named(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a tokenizer"):
        load_tokenizer(replace(checkpoint, tokenizer={"tokenizer.json": broken}))
    byte_level_model().save(str(broken))
    config = tmp_path / "tokenizer_config.json"
    for content in ("{", "[]"):
        config.write_text(content)
        files = {"tokenizer.json": broken, "tokenizer_config.json": config}
        with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
            load_tokenizer(replace(checkpoint, tokenizer=files))


def test_a_split_by_a_pattern_is_read_too() -> None:
    """Qwen and Llama 3 folders cut words by a pattern of their own."""
    model = byte_level_model()
    split = pre_tokenizers.Split(Regex(r"\p{N}|\p{L}+|\s+"), behavior="isolated")
    model.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    assert read(model).encode("the 12", special=False) == model.encode("the 12", add_special_tokens=False).ids
