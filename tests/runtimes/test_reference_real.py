"""The reference on the default model: that file reading, tokenizer and arithmetic together make sense of English."""

from pathlib import Path

import numpy as np
import pytest

from lightwell.checkpoints.opening import open_checkpoint
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text.load import load_tokenizer
from lightwell.text.tokenizer import Tokenizer
from tests.steps import Chunk, blocks_for, generate, step_of

pytestmark = pytest.mark.slow

Model = tuple[ReferenceRuntime, Tokenizer]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Model:
    checkpoint = open_checkpoint(smollm2)
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    runtime.allocate(16)
    return runtime, load_tokenizer(checkpoint)


def test_it_knows_the_capital_of_france(model: Model) -> None:
    runtime, tokenizer = model
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = tokenizer.decode(generate(runtime, tokenizer.encode(prompt, special=True), 8))
    assert answer.startswith("The capital of France is Paris.")


def test_perplexity_of_wikitext_is_that_of_this_model(model: Model, shared: Path) -> None:
    """As measured once these weights agreed with llama.cpp's top tokens; an error in any operation moves it far."""
    runtime, tokenizer = model
    text = (shared / "data/corpora/wikitext-2/wiki.test.raw").read_text("utf-8")[:4000]
    tokens = tokenizer.encode(text, special=False)[:400]
    logits = np.empty((len(tokens), tokenizer.vocab_size), np.float32)
    runtime.execute(step_of(Chunk(tokens, 0, range(blocks_for(len(tokens))), draw=range(len(tokens)))), logits)
    scores = logits[:-1].astype(np.float64)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), tokens[1:]]
    assert np.exp(losses.mean()) == pytest.approx(26.95, rel=0.01)
