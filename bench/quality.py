"""How close the CPU runtime's arithmetic comes to float32 on the same dequantized weights.

    python bench/quality.py MODEL TEXT [--chunks 16] [--exact-chunks N] [--kv-cache-dtype int8] [--llama-logits FILE]

Reads TEXT in chunks of 512 tokens and compares the scores of the second half of each chunk with those of the NumPy
reference: mean KL divergence, perplexity of both, and how often the likeliest token is the same. The CPU runtime with
float32 activations, which is slow, reads only the first --exact-chunks (all unless given). With --llama-logits, a file
written by ``llama-perplexity -m MODEL -f TEXT -c 512 --chunks N --save-all-logits FILE``, llama.cpp's scores are
measured against the same reference on the same positions.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.cli.scoring import Perplexity, Softmax, chunks, load, score, softmax
from lightwell.runtimes.base import Floats, Int32s, Runtime
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.text import load_tokenizer

CONTEXT = 512


@dataclass
class Closeness:
    """Sums over positions; ``mean_kl`` and the perplexities are what is quoted."""

    kl: float = 0.0
    agreed: int = 0
    error: float = 0.0  # of a row of scores, relative, in the Euclidean norm
    ours: Perplexity = field(default_factory=Perplexity)
    reference: Perplexity = field(default_factory=Perplexity)

    def add(self, expected: Floats, expected_softmax: Sequence[Softmax], scores: Floats, targets: Int32s) -> None:
        """Rows of raw scores (positions, vocabulary), the reference's and others, and the token that follows each."""
        for row in zip(expected, expected_softmax, scores, targets, strict=True):
            self._add(*row)

    def _add(self, expected: Floats, reference: Softmax, scores: Floats, target: np.int32) -> None:
        """Terms of the divergence are differences of scores less those of the peaks: small, so float32 will do."""
        ours = softmax(scores)
        self.ours.add(ours.loss(scores[target]))
        self.reference.add(reference.loss(expected[target]))
        self.agreed += int(expected.argmax() == scores.argmax())
        difference = expected - scores
        self.error += float(np.linalg.norm(difference) / np.linalg.norm(expected))
        difference -= reference.peak - ours.peak
        difference *= reference.exponentials
        mean = float(difference.sum(dtype=np.float64)) / reference.total
        self.kl += mean + math.log(ours.total / reference.total)

    @property
    def mean_kl(self) -> float:
        return self.kl / self.ours.positions

    @property
    def mean_error(self) -> float:
        return self.error / self.ours.positions

    def __str__(self) -> str:
        ours, reference, positions = self.ours.value, self.reference.value, self.ours.positions
        return (
            f"{positions} positions: mean KL {self.mean_kl:.5f}, perplexity {ours:.3f} "
            f"(reference {reference:.3f}, {ours / reference - 1:+.2%}), "
            f"same likeliest token {self.agreed / positions:.3f}, "
            f"mean relative error of the scores {self.mean_error:.1e}"
        )


def loaded(runtime: Runtime, checkpoint: Checkpoint) -> Runtime:
    load(runtime, checkpoint, CONTEXT)
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


def llama_chunk(theirs: Iterator[tuple[list[int], Floats]], tokens: list[int]) -> Floats:
    """They are log-probabilities, so the error of the scores says nothing here; all else does."""
    llama_tokens, logprobs = next(theirs)
    if llama_tokens[1:] != tokens[1:]:  # llama.cpp writes the first token as it was before BOS replaced it
        raise SystemExit("llama.cpp cut the text into other tokens")
    return logprobs


def compare(
    reference: Runtime,
    runtimes: Mapping[str, tuple[Runtime, int]],
    parts: Sequence[list[int]],
    vocab: int,
    theirs: Iterator[tuple[list[int], Floats]] | None = None,
) -> dict[str, Closeness]:
    """Each runtime, by name, over the first so many of the chunks, and llama.cpp's scores over all of them."""
    measured = {name: Closeness() for name, (_, count) in runtimes.items() if count > 0}
    for index, tokens in enumerate(parts):
        ((expected, targets),) = score(reference, tokens, vocab)
        references = [softmax(row) for row in expected]
        for name, (runtime, count) in runtimes.items():
            if index < count:
                ((scores, _),) = score(runtime, tokens, vocab)
                measured[name].add(expected, references, scores, targets)
        if theirs is not None:
            measured.setdefault("llama.cpp", Closeness()).add(
                expected, references, llama_chunk(theirs, tokens), targets
            )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--exact-chunks", type=int)
    parser.add_argument("--kv-cache-dtype", choices=["f16", "int8"], default="f16")
    parser.add_argument("--llama-logits", type=Path)
    options = parser.parse_args()

    checkpoint = open_checkpoint(pull(options.model))
    text = options.text.read_text(encoding="utf-8")
    parts = chunks(load_tokenizer(checkpoint), text, CONTEXT, options.chunks)
    exact = options.chunks if options.exact_chunks is None else options.exact_chunks
    kv = options.kv_cache_dtype
    runtimes = {"int8 activations": (loaded(CpuRuntime(kv_cache_dtype=kv), checkpoint), options.chunks)}
    if exact > 0:
        runtimes["float32 activations"] = (
            loaded(CpuRuntime(activations="float32", kv_cache_dtype=kv), checkpoint),
            exact,
        )
    theirs = llama_scores(options.llama_logits) if options.llama_logits else None
    reference = loaded(ReferenceRuntime(), checkpoint)
    for name, closeness in compare(reference, runtimes, parts, checkpoint.spec.vocab, theirs).items():
        print(f"{name}: {closeness}")


if __name__ == "__main__":
    main()
