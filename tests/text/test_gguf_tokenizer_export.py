"""tokenizer.json as GGUF keys: the same ids for any text, and a refusal for what GGUF cannot say."""

import json
import logging
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_vocabularies import byte_level_metadata, sentencepiece_metadata
from test_hf_tokenizers import TEXTS, byte_level_model, sentencepiece_model
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

from lightwell.errors import CheckpointError
from lightwell.text import load_tokenizer
from lightwell.text.byte_level import PRE_TOKENIZERS, pre_tokenizer
from lightwell.text.gguf_export import gguf_tokenizer
from lightwell.text.gguf_tokenizers import load_gguf_tokenizer
from tests.tiny import tiny_checkpoint

BYTE_LEVEL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
SENTENCEPIECE = {"bos_token": "<s>", "eos_token": "</s>"}
VOCAB = 600  # more rows than tokens, as many models have

# As the published tokenizer.json files have them.
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = _LETTERS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PUBLISHED = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "qwen2": [
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def checkpoint_of(folder, model, config, template=None, vocab=VOCAB):
    files = {name: folder / name for name in ("tokenizer.json", "tokenizer_config.json")}
    model.save(str(files["tokenizer.json"]))
    files["tokenizer_config.json"].write_text(json.dumps(config))
    tiny = tiny_checkpoint()
    return replace(tiny, path=folder, tokenizer=files, chat_template=template, spec=replace(tiny.spec, vocab=vocab))


def check_same(checkpoint, texts):
    keys = gguf_tokenizer(checkpoint)
    ours, found = load_tokenizer(checkpoint), load_gguf_tokenizer(checkpoint.path, keys, vocab=VOCAB)
    for text in texts:
        ids = ours.encode(text, special=True)
        assert found.encode(text, special=True) == ids
        assert found.decode(ids, skip_special=False) == ours.decode(ids, skip_special=False)
        assert found.encode(text, special=False) == ours.encode(text, special=False)
    return keys


def cutting(steps, whole_words):
    model = byte_level_model()
    model.pre_tokenizer = pre_tokenizers.Sequence(steps)
    model.model.ignore_merges = whole_words
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_ways_of_cutting_have_names(name, tmp_path):
    model = cutting(PUBLISHED[name], PRE_TOKENIZERS[name].whole_words)
    keys = check_same(checkpoint_of(tmp_path, model, BYTE_LEVEL), ["the cat 1234 isn't\n\n  on  the\thát", ""])
    assert keys["tokenizer.ggml.pre"] == name
    assert keys["tokenizer.ggml.model"] == "gpt2"


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_name_is_found_again(name, tmp_path):
    kind = PRE_TOKENIZERS[name]
    model = cutting([pre_tokenizer(kind)], kind.whole_words)
    keys = gguf_tokenizer(checkpoint_of(tmp_path, model, BYTE_LEVEL))
    assert PRE_TOKENIZERS[keys["tokenizer.ggml.pre"]].patterns == kind.patterns


def gemma_like():
    model = sentencepiece_model("prepend")
    model.normalizer = normalizers.Replace(" ", "▁")
    model.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return model


MADE = {"byte level": (byte_level_model, BYTE_LEVEL), "gemma": (gemma_like, SENTENCEPIECE)}
MADE["llama 2"] = (lambda: sentencepiece_model("prepend"), SENTENCEPIECE)


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS.map("".join) | st.text(max_size=30), max_size=8))
def test_ids_and_texts_are_the_same(kind, texts, tmp_path):
    make, config = MADE[kind]
    check_same(checkpoint_of(tmp_path, make(), config), texts)


def test_the_keys_of_a_sentencepiece_vocabulary(tmp_path):
    metadata = sentencepiece_metadata()
    keys = gguf_tokenizer(checkpoint_of(tmp_path, sentencepiece_model("prepend"), SENTENCEPIECE, template="T"))
    count = len(metadata["tokenizer.ggml.tokens"])
    assert keys["tokenizer.ggml.tokens"][:count] == metadata["tokenizer.ggml.tokens"]
    assert keys["tokenizer.ggml.tokens"][count:] == [f"[PAD{n}]" for n in range(count, VOCAB)]
    assert keys["tokenizer.ggml.token_type"] == metadata["tokenizer.ggml.token_type"] + [5] * (VOCAB - count)
    for name in ("model", "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix"):
        assert keys[f"tokenizer.ggml.{name}"] == metadata[f"tokenizer.ggml.{name}"]
    assert keys["tokenizer.chat_template"] == "T"


def test_merges_may_be_texts_as_in_older_files(tmp_path):
    checkpoint = checkpoint_of(tmp_path, byte_level_model(), BYTE_LEVEL)
    pairs = gguf_tokenizer(checkpoint)
    file = checkpoint.tokenizer["tokenizer.json"]
    description = json.loads(file.read_text())
    description["model"]["merges"] = [" ".join(pair) for pair in description["model"]["merges"]]
    file.write_text(json.dumps(description))
    assert gguf_tokenizer(checkpoint) == pairs
    assert pairs["tokenizer.ggml.merges"] == byte_level_metadata()["tokenizer.ggml.merges"]


def test_a_unicode_normal_form_is_warned_about(tmp_path, caplog):
    model = byte_level_model()
    model.normalizer = normalizers.NFC()
    with caplog.at_level(logging.WARNING):
        check_same(checkpoint_of(tmp_path, model, BYTE_LEVEL), ["café"])
    assert "NFC" in caplog.text


def with_token(**flags):
    model = byte_level_model()
    model.add_tokens([AddedToken("<|end|>", special=True, normalized=False, **flags)])
    return model


def with_normalizer(normalizer):
    model = byte_level_model()
    model.normalizer = normalizer
    return model


def unranked():
    """A merge that scores would make, taken out."""
    model = sentencepiece_model("prepend")
    description = json.loads(model.to_str())
    del description["model"]["merges"][0]
    return tokenizers.Tokenizer.from_str(json.dumps(description))


REFUSED = {
    "stripping": (lambda: with_token(rstrip=True), BYTE_LEVEL, r"token '<\|end\|>' has rstrip set"),
    "normalizer": (lambda: with_normalizer(normalizers.Lowercase()), BYTE_LEVEL, "has the normalizer Lowercase"),
    "prefix": (
        lambda: cutting([pre_tokenizers.ByteLevel(add_prefix_space=True)], False),
        BYTE_LEVEL,
        "cuts words in a way that is none of those known by a name here: default, gpt-2",
    ),
    "cutting": (lambda: cutting([pre_tokenizers.ByteLevel(False, use_regex=False)], False), BYTE_LEVEL, "cuts words"),
    "whole words": (lambda: cutting(PUBLISHED["llama-bpe"], False), BYTE_LEVEL, "cuts words in a way"),
    "scores": (unranked, SENTENCEPIECE, "is no merge of it"),
    "first space": (lambda: sentencepiece_model("metaspace"), SENTENCEPIECE, "give other ids for a text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_gguf_cannot_say_is_refused(case, tmp_path):
    make, config, says = REFUSED[case]
    with pytest.raises(CheckpointError, match=says):
        gguf_tokenizer(checkpoint_of(tmp_path, make(), config))


def test_more_tokens_than_rows_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="the model rows for 100"):
        gguf_tokenizer(checkpoint_of(tmp_path, byte_level_model(), BYTE_LEVEL, vocab=100))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        gguf_tokenizer(replace(tiny_checkpoint(), path=tmp_path))
