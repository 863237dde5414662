"""The cache of built tokenizers: used when it can be, built again when it is damaged, never in the way."""

import logging
from pathlib import Path

import pytest
from small_vocabularies import load, sentencepiece_metadata

from lightwell.text import gguf_tokenizers, sentencepiece
from lightwell.text.tokenizer import Tokenizer

TEXT = "the banana <think> 日本語 </s>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tokenizers are kept while every vocabulary counts as slow to build."""
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf_tokenizers, "_SLOW_TO_BUILD", 0)
    return tmp_path / "tokenizers"


def ids(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TEXT, special=True)


@pytest.fixture
def expected() -> list[int]:
    return ids(load(sentencepiece_metadata()))


def test_a_kept_tokenizer_is_loaded_and_not_built(
    folder: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ids(load(sentencepiece_metadata())) == expected
    assert len(list(folder.iterdir())) == 1

    def fail(*_: object, **__: object) -> None:
        pytest.fail("built although it is kept")

    monkeypatch.setattr(sentencepiece, "build", fail)
    assert ids(load(sentencepiece_metadata())) == expected


@pytest.mark.parametrize("cut", [0, 10, 65, 1000, -1])
def test_a_damaged_file_is_built_again(
    folder: Path, expected: list[int], cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    load(sentencepiece_metadata())
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:cut])
    with caplog.at_level(logging.WARNING):
        assert ids(load(sentencepiece_metadata())) == expected
    assert "is damaged" in caplog.text
    assert kept.read_bytes() == whole


def test_other_metadata_are_kept_apart(folder: Path) -> None:
    scores = list(sentencepiece_metadata()["tokenizer.ggml.scores"])
    scores[-1] = 5.0
    for metadata in (
        sentencepiece_metadata(),
        sentencepiece_metadata(space_prefix=False),
        sentencepiece_metadata() | {"tokenizer.ggml.scores": scores},
        sentencepiece_metadata()
        | {"tokenizer.ggml.tokens": [*sentencepiece_metadata()["tokenizer.ggml.tokens"][:-1], "x"]},
    ):
        load(metadata)
    assert len(list(folder.iterdir())) == 4


def test_a_folder_that_cannot_be_written_costs_only_a_warning(
    tmp_path: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("LIGHTWELL_CACHE", str(file))
    monkeypatch.setattr(gguf_tokenizers, "_SLOW_TO_BUILD", 0)
    with caplog.at_level(logging.WARNING):
        assert ids(load(sentencepiece_metadata())) == expected
    assert "could not be kept" in caplog.text


def test_small_vocabularies_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    load(sentencepiece_metadata())
    assert list(tmp_path.iterdir()) == []
