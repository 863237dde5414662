"""The CPU runtime's arithmetic against float32 on the same dequantized weights, on wikitext-2 and the real models.

``bench/quality.py`` measures the same over more text, beside llama.cpp.
"""

import pytest

from bench.quality import CONTEXT, Closeness, compare, loaded
from lightwell.checkpoints import open_checkpoint
from lightwell.cli.scoring import chunks
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text import load_tokenizer

pytestmark = pytest.mark.slow


def measure(path, text, count) -> dict[str, Closeness]:
    checkpoint = open_checkpoint(path)
    runtimes = {
        "int8": (loaded(CpuRuntime(), checkpoint), count),
        "float32": (loaded(CpuRuntime(activations="float32"), checkpoint), 1),  # slow, and alike in every chunk
        "int8 KV": (loaded(CpuRuntime(kv_cache_dtype="int8"), checkpoint), count),
    }
    parts = chunks(load_tokenizer(checkpoint), text, CONTEXT, count)
    return compare(loaded(ReferenceRuntime(), checkpoint), runtimes, parts, checkpoint.spec.vocab)


# The mean of log-likelihood ratios whose KL divergence is 0.003 spreads by about sqrt(2 * 0.003 / positions): by 0.1 %
# over the 4,080 positions of 16 chunks, by 0.5 % over the 255 of one. Gemma's reference is too slow for more.
# An int8 KV cache has one scale for a head, which Gemma's 256 dimensions feel more than SmolLM2's 64.
@pytest.mark.parametrize(
    ("model", "count", "perplexity_error", "int8_kv_kl"), [("smollm2", 16, 0.005, 0.006), ("gemma3", 1, 0.015, 0.01)]
)
def test_close_to_the_reference(model, count, perplexity_error, int8_kv_kl, shared, request):
    text = (shared / "data/corpora/wikitext-2/wiki.test.raw").read_text(encoding="utf-8")
    measured = measure(request.getfixturevalue(model), text, count)
    exact, quantized = measured["float32"], measured["int8"]
    assert exact.mean_error < 1e-3
    assert exact.mean_kl < 1e-4
    assert quantized.mean_kl < 0.004
    assert abs(quantized.ours.value / quantized.reference.value - 1) < perplexity_error
    assert measured["int8 KV"].mean_kl < int8_kv_kl
    assert abs(measured["int8 KV"].ours.value / quantized.ours.value - 1) < perplexity_error
