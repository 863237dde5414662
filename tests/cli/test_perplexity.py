"""Perplexity against its definition, computed by hand from the reference runtime's scores."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality import Closeness
from lightwell.checkpoints import open_checkpoint
from lightwell.cli.scoring import STEP_TOKENS, Perplexity, chunks, load, score, softmax
from lightwell.errors import StartupError
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text import load_tokenizer
from tests.steps import Chunk, blocks_for, step_of
from tests.text.small_vocabularies import load as small_tokenizer
from tests.text.small_vocabularies import sentencepiece_metadata
from tests.tiny_gguf import write_tiny_gguf

TEXT = "The light well brings daylight into the inner rooms of a house, and so it is with this one. " * 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=2048)


def log_softmax(scores):
    scores = scores.astype(np.float64)
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def losses_by_hand(path, parts):
    """From one step for a whole chunk, all rows scored, in float64."""
    checkpoint = open_checkpoint(path)
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    found = []
    for tokens in parts:
        context = len(tokens)
        runtime.allocate(blocks_for(context))
        out = np.empty((context, checkpoint.spec.vocab), np.float32)
        runtime.execute(step_of(Chunk(tokens, 0, list(range(blocks_for(context))), draw=range(context))), out)
        logprobs = log_softmax(out)
        found += [-logprobs[at, tokens[at + 1]] for at in range(context // 2, context - 1)]
    return np.array(found)


@pytest.mark.parametrize("context", [7, 64, 2 * STEP_TOKENS + 6])
def test_second_halves_are_scored(tiny, context):
    checkpoint = open_checkpoint(tiny)
    parts = chunks(load_tokenizer(checkpoint), TEXT, context, None)[:3]
    runtime, result = ReferenceRuntime(), Perplexity()
    load(runtime, checkpoint, context)
    for part in parts:
        for scores, targets in score(runtime, part, checkpoint.spec.vocab):
            for row, target in zip(scores, targets, strict=True):
                result.add(softmax(row).loss(row[target]))
    expected = losses_by_hand(tiny, parts)
    mean, count = expected.mean(), len(expected)
    assert result.positions == count == len(parts) * (context - 1 - context // 2)
    assert result.value == pytest.approx(np.exp(mean), rel=1e-5)
    error = np.exp(mean) * np.sqrt((np.square(expected).mean() - mean**2) / (count - 1))
    assert result.standard_error == pytest.approx(error, rel=1e-3)


def test_every_chunk_begins_with_bos_where_the_model_wants_it():
    tokenizer = small_tokenizer(sentencepiece_metadata(add_bos=True))
    tokens = [tokenizer.bos_id, *tokenizer.encode("the cat and the hat", special=False)]
    count = len(tokens) // 4
    assert chunks(tokenizer, "the cat and the hat", 4, None) == [
        [tokenizer.bos_id, *tokens[i * 4 + 1 : i * 4 + 4]] for i in range(count)
    ]
    plain = small_tokenizer(sentencepiece_metadata(add_bos=False))
    assert chunks(plain, "the cat and the hat", 4, 1) == [tokens[1:5]]


def test_a_text_that_is_too_short_is_refused_with_the_numbers():
    tokenizer = small_tokenizer(sentencepiece_metadata(add_bos=False))
    has = len(tokenizer.encode("the cat", special=False))
    with pytest.raises(StartupError, match=rf"has {has} tokens, but 24 are needed"):
        chunks(tokenizer, "the cat", 8, 3)


@given(st.integers(0, 2**32), st.floats(-30, 30), st.floats(0, 3), st.floats(0.1, 20))
def test_closeness_is_that_of_float64(seed, offset, distance, spread):
    rng = np.random.default_rng(seed)
    expected = rng.normal(0, spread, (3, 300)).astype(np.float32)
    scores = (expected + offset + rng.normal(0, distance, expected.shape)).astype(np.float32)
    targets = rng.integers(0, 300, 3, dtype=np.int32)
    closeness = Closeness()
    closeness.add(expected, [softmax(row) for row in expected], scores, targets)
    p, q = log_softmax(expected), log_softmax(scores)
    assert closeness.mean_kl == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-5, abs=1e-6)
    rows = np.arange(3)
    assert np.log(closeness.ours.value) == pytest.approx(-q[rows, targets].mean(), rel=1e-5, abs=1e-6)
    assert np.log(closeness.reference.value) == pytest.approx(-p[rows, targets].mean(), rel=1e-5, abs=1e-6)
    assert closeness.agreed == (p.argmax(1) == q.argmax(1)).sum()


def command(*words):
    line = [sys.executable, "-m", "lightwell.cli.main", "perplexity", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_the_command_prints_a_line_or_json(tiny, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    done = command(tiny, text, "--context", "64", "--chunks", "2")
    assert "tiny: perplexity " in done.stdout, done.stderr
    assert "over 62 positions (2 chunks of 64 tokens" in done.stdout
    found = json.loads(command(tiny, text, "--context", "64", "--chunks", "2", "--json").stdout)
    assert f"{found['perplexity']:.4f} +/- {found['standard_error']:.4f}" in done.stdout
    parts = chunks(load_tokenizer(open_checkpoint(tiny)), TEXT, 64, 2)
    assert found["perplexity"] == pytest.approx(np.exp(losses_by_hand(tiny, parts).mean()), rel=0.02)


@pytest.mark.parametrize(
    ("content", "flags", "says"),
    [
        (b"short", [], "has 5 tokens, but 512 are needed"),
        (b"\xff", [], "is not UTF-8"),
        (None, [], "cannot be read"),
        (b"x" * 5000, ["--context", "4096"], "--context is 4096, but tiny is made for up to 2048"),
    ],
)
def test_what_cannot_be_measured_is_one_line(tiny, tmp_path, content, flags, says):
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    done = command(tiny, text, *flags)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
