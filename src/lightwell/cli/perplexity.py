"""``lightwell perplexity MODEL TEXT``: how well a model predicts a text, which shows what a quantized format costs."""

import json
import time
from pathlib import Path

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.cli.progress import progress
from lightwell.cli.scoring import Perplexity, chunks, load, score, softmax
from lightwell.errors import StartupError
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.text import load_tokenizer
from lightwell.units import Tokens


def perplexity(model: str, text: Path, context: Tokens, count: int | None, threads: int | None, as_json: bool) -> None:
    """Print the perplexity with its standard error, and tokens per second, the reading of scores included.

    Raises StartupError for a text that cannot be read or is too short, and for a context beyond the model's.
    """
    checkpoint = open_checkpoint(pull(model))
    spec = checkpoint.spec
    if context > spec.context_tokens:
        raise StartupError(f"--context is {context}, but {spec.name} is made for up to {spec.context_tokens} tokens.")
    parts = chunks(load_tokenizer(checkpoint), _read(text), context, count)
    runtime = CpuRuntime(threads=threads)
    load(runtime, checkpoint, context)
    result = Perplexity()
    begin = time.perf_counter()
    with progress(spec.name, len(parts)) as advance:
        for part in parts:
            for scores, targets in score(runtime, part, spec.vocab):
                for row, target in zip(scores, targets, strict=True):
                    result.add(softmax(row).loss(row[target]))
            advance(1, f"perplexity {result.value:.3f}")
    rate = len(parts) * context / (time.perf_counter() - begin)
    if as_json:
        print(json.dumps(_facts(spec.name, result, context, len(parts), rate)))
        return
    print(
        f"{spec.name}: perplexity {result.value:.4f} +/- {result.standard_error:.4f} "
        f"over {result.positions} positions ({len(parts)} chunks of {context} tokens, {rate:.0f} tokens/s)"
    )


def _facts(model: str, result: Perplexity, context: Tokens, count: int, rate: float) -> dict[str, object]:
    return {
        "measure": "perplexity",
        "model": model,
        "perplexity": result.value,
        "standard_error": result.standard_error,
        "positions": result.positions,
        "chunks": count,
        "context": context,
        "tokens_per_second": rate,
    }


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{text} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise StartupError(f"{text} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
