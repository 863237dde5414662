"""Lightwell beside llama.cpp on this machine: one stream decoding, prefill, and a server under 16 streams.

    python bench/llama_cpp.py MODEL LLAMA_MODEL LLAMA_FOLDER [--rounds 5] [--threads 2]

MODEL is Lightwell's (a name or a path), LLAMA_MODEL the GGUF file for llama.cpp (for a Q4_1 model its Q4_0 form, made
with ``llama-quantize --allow-requantize``, is the fast path), LLAMA_FOLDER holds ``llama-bench`` and ``llama-server``.
The two take turns within each round, so that a change of the machine's speed meets both; medians are what counts.
"""

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lightwell.cli.bench import decoding, load, prefilling
from lightwell.cli.bench_serve import free_port, started_server, wait_ready
from lightwell.cli.load import Load, metrics, run_load
from lightwell.host.memory import blocks_for

DECODE_TOKENS, PREFILL_TOKENS = 128, 512
STREAMS, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 48, 200, 128

Measure = Callable[[], float]  # tokens per second


def llama_bench(folder: Path, model: Path, threads: int, *tests: str) -> float:
    command = [str(folder / "llama-bench"), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", *tests]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


@contextmanager
def llama_server(folder: Path, model: Path, threads: int) -> Iterator[str]:
    port = free_port()
    command = [str(folder / "llama-server"), "-m", str(model), "-np", str(STREAMS), "--cont-batching", "-c", "40960"]
    command += ["-t", str(threads), "-tb", str(threads), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_ready(address, process)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def served(address: str, model: str) -> float:
    return metrics(run_load(address, model, Load(STREAMS, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS)))["tokens_per_second"]


def compare(name: str, rounds: int, ours: Measure, theirs: Measure) -> None:
    ours(), theirs()  # warm-up
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    a, b = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(x / y for x, y in pairs)
    print(f"{name:<28} {a:8.0f} {b:10.0f} {a / b:7.2f}   ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("llama_model", type=Path)
    parser.add_argument("llama_folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    llama = options.llama_folder, options.llama_model, options.threads

    loaded = load(options.model, options.threads, blocks_for(PREFILL_TOKENS))
    decode = decoding(loaded, 1, DECODE_TOKENS)
    prefill = prefilling(loaded, PREFILL_TOKENS, PREFILL_TOKENS)
    print(f"{'tokens/s, medians':<28} {'Lightwell':>8} {'llama.cpp':>10} {'ratio':>7}   (range of the rounds)")
    compare(
        f"decode {DECODE_TOKENS}",
        options.rounds,
        lambda: DECODE_TOKENS / decode(),
        lambda: llama_bench(*llama, "-p", "0", "-n", str(DECODE_TOKENS)),
    )
    compare(
        f"prefill {PREFILL_TOKENS}",
        options.rounds,
        lambda: PREFILL_TOKENS / prefill(),
        lambda: llama_bench(*llama, "-p", str(PREFILL_TOKENS), "-n", "0"),
    )
    with ExitStack() as servers:
        ours = servers.enter_context(started_server(options.model, options.threads))
        theirs = servers.enter_context(llama_server(*llama))
        compare(
            f"served, {STREAMS} streams",
            options.rounds,
            lambda: served(ours, options.model),
            lambda: served(theirs, options.llama_model.name),
        )


if __name__ == "__main__":
    main()
