"""How close the CPU runtime's arithmetic comes to float32 on the same dequantized weights.

    python bench/quality.py MODEL TEXT [--chunks 16] [--kv-cache-dtype f16|int8] [--llama-logits FILE]

Reads TEXT in chunks of 512 tokens and compares the scores of the second half of each chunk with those of the NumPy
reference: mean KL divergence, perplexity of both, and how often the likeliest token is the same. With
--llama-logits, a file written by ``llama-perplexity -m MODEL -f TEXT -c 512 --chunks N --save-all-logits FILE``,
llama.cpp's scores are measured against the same reference on the same positions.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.runtimes.base import BLOCK_TOKENS, Runtime, StepInput, sampling_rows
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.text import Tokenizer, load_tokenizer

CONTEXT = 512
Floats = npt.NDArray[np.float32]


@dataclass
class Closeness:
    """Sums over positions; ``mean_kl`` and the perplexities are what is quoted."""

    positions: int = 0
    kl: float = 0.0
    agreed: int = 0
    loss: float = 0.0
    reference_loss: float = 0.0
    error: float = 0.0  # of a row of scores, relative, in the Euclidean norm

    def add(self, reference: Floats, scores: Floats, targets: npt.NDArray[np.int64]) -> None:
        """Rows of raw scores (positions, vocabulary) and the token that follows each."""
        expected, got = log_softmax(reference), log_softmax(scores)
        rows = np.arange(len(targets))
        self.positions += len(targets)
        self.kl += float((np.exp(expected) * (expected - got)).sum())
        self.agreed += int((expected.argmax(1) == got.argmax(1)).sum())
        self.loss -= float(got[rows, targets].sum())
        self.reference_loss -= float(expected[rows, targets].sum())
        self.error += float((np.linalg.norm(reference - scores, axis=1) / np.linalg.norm(reference, axis=1)).sum())

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions

    @property
    def mean_error(self) -> float:
        return self.error / self.positions

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss / self.positions))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(self.reference_loss / self.positions))

    def __str__(self) -> str:
        return (
            f"{self.positions} positions: mean KL {self.mean_kl:.5f}, perplexity {self.perplexity:.3f} "
            f"(reference {self.reference_perplexity:.3f}, {self.perplexity / self.reference_perplexity - 1:+.2%}), "
            f"same likeliest token {self.agreed / self.positions:.3f}, "
            f"mean relative error of the scores {self.mean_error:.1e}"
        )


def log_softmax(scores: Floats) -> npt.NDArray[np.float64]:
    shifted = scores.astype(np.float64) - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def chunks(tokenizer: Tokenizer, text: str, count: int) -> list[list[int]]:
    """The first ``count`` runs of CONTEXT tokens; each begins with BOS where the model wants one."""
    tokens = tokenizer.encode(text, special=False)
    if len(tokens) < count * CONTEXT:
        raise SystemExit(f"the text has only {len(tokens)} tokens, {count * CONTEXT} are needed")
    parts = [tokens[i * CONTEXT : (i + 1) * CONTEXT] for i in range(count)]
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        shifted = [tokenizer.bos_id, *tokens]  # as llama.cpp does: BOS before the text, then over each chunk's first
        parts = [[tokenizer.bos_id, *shifted[i * CONTEXT + 1 : (i + 1) * CONTEXT]] for i in range(count)]
    return parts


def scores(runtime: Runtime, tokens: list[int], vocab: int) -> Floats:
    """Raw scores of the second half of ``tokens``, its last position left out as nothing follows it."""
    rows = np.arange(CONTEXT // 2, CONTEXT - 1, dtype=np.int32)
    out = np.empty((len(rows), vocab), np.float32)
    runtime.execute(
        StepInput(
            tokens=np.asarray(tokens, np.int32),
            positions=np.arange(CONTEXT, dtype=np.int32),
            starts=np.array([0, CONTEXT], np.int32),
            block_tables=np.arange(CONTEXT // BLOCK_TOKENS, dtype=np.int32)[None],
            logit_rows=rows,
            sampling=sampling_rows([SamplingParams(temperature=0)] * len(rows), (rows + 1).tolist()),
        ),
        out,
    )
    return out


def loaded(runtime: Runtime, model: Path) -> Runtime:
    runtime.load(open_checkpoint(model))
    runtime.allocate(CONTEXT // BLOCK_TOKENS)
    return runtime


def llama_scores(file: Path) -> Iterator[tuple[list[int], Floats]]:
    """Tokens and log-probabilities of each chunk that llama-perplexity saved: 16 bits a value, a scale a row."""
    with file.open("rb") as stream:
        if stream.read(8) != b"_logits_":
            raise SystemExit(f"{file} was not written by llama-perplexity --save-all-logits")
        context, vocab, count = np.fromfile(stream, np.int32, 3)
        tokens = np.fromfile(stream, np.int32, context * count).reshape(count, context)
        words = 2 * ((vocab + 1) // 2) + 4
        for row in tokens:
            packed = np.fromfile(stream, np.uint16, words * (context - 1 - context // 2)).reshape(-1, words)
            scale, low = packed[:, :4].copy().view(np.float32).T
            yield row.tolist(), packed[:, 4 : 4 + vocab] * scale[:, None] + low[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--kv-cache-dtype", choices=["f16", "int8"], default="f16")
    parser.add_argument("--llama-logits", type=Path)
    options = parser.parse_args()

    path = pull(options.model)
    checkpoint = open_checkpoint(path)
    vocab = checkpoint.spec.vocab
    kv = options.kv_cache_dtype
    reference, ours = loaded(ReferenceRuntime(), path), loaded(CpuRuntime(kv_cache_dtype=kv), path)
    exact = loaded(CpuRuntime(activations="float32", kv_cache_dtype=kv), path)
    measured = {"int8 activations": Closeness(), "float32 activations": Closeness()}
    theirs = llama_scores(options.llama_logits) if options.llama_logits else None
    for tokens in chunks(load_tokenizer(checkpoint), options.text.read_text(encoding="utf-8"), options.chunks):
        expected = scores(reference, tokens, vocab)
        targets = np.asarray(tokens[CONTEXT // 2 + 1 :])
        measured["int8 activations"].add(expected, scores(ours, tokens, vocab), targets)
        measured["float32 activations"].add(expected, scores(exact, tokens, vocab), targets)
        if theirs is not None:
            llama_tokens, logprobs = next(theirs)
            if llama_tokens[1:] != tokens[1:]:  # llama.cpp writes the first token as it was before BOS replaced it
                raise SystemExit("llama.cpp cut the text into other tokens")
            # They are log-probabilities, so the error of the scores says nothing here; all else does.
            measured.setdefault("llama.cpp", Closeness()).add(expected, logprobs, targets)
    for name, closeness in measured.items():
        print(f"{name}: {closeness}")


if __name__ == "__main__":
    main()
