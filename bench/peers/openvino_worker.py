"""Runs in OpenVINO GenAI's own environment and imports nothing of ours: loads a model, then runs loads in process.

    python openvino_worker.py MODEL THREADS CACHE_GIB

A line of JSON in, ``{"prompts": [[id, ...], ...], "streams": n, "output_tokens": m}``; a line out for it, ``{"answers":
[{"sent": s, "arrivals": [s, ...], "tokens": n}, ...]}``; one line ``{"ready": version}`` before the first.
"""

import json
import os
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


def load(model: str, threads: int, cache_gib: int) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = cache_gib
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = True
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


def run(
    pipeline: genai.ContinuousBatchingPipeline, prompts: list[list[int]], streams: int, output_tokens: int
) -> list[dict[str, Any]]:
    """Keep ``streams`` requests open until all prompts are answered; tokens are noted when a step has made them."""
    config = genai.GenerationConfig()
    config.max_new_tokens = output_tokens
    config.ignore_eos = True
    waiting = deque(enumerate(prompts))
    running: list[tuple[Any, dict[str, Any]]] = []
    answers: list[dict[str, Any]] = []
    while waiting or running:
        while waiting and len(running) < streams:
            number, ids = waiting.popleft()
            answer: dict[str, Any] = {"sent": time.perf_counter(), "arrivals": [], "tokens": 0}
            tensor = openvino.Tensor(np.array([ids], np.int64))
            running.append((pipeline.add_request(number, tensor, config), answer))
            answers.append(answer)
        pipeline.step()
        now = time.perf_counter()
        for handle, answer in running:
            note(handle, answer, now)
        running = [pair for pair in running if pair[1]["tokens"] < output_tokens]
    while pipeline.has_non_finished_requests():  # lets it clear away what has just ended
        pipeline.step()
    return answers


def note(handle: Any, answer: dict[str, Any], now: float) -> None:
    while handle.can_read():
        for output in handle.read().values():
            answer["tokens"] += len(output.generated_ids)
            answer["arrivals"].append(now)
    status = handle.get_status()
    if status not in (genai.GenerationStatus.RUNNING, genai.GenerationStatus.FINISHED):
        raise RuntimeError(f"a request ended as {status}")


def main() -> None:
    model, threads, cache_gib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints must not stand between the lines
    pipeline = load(model, threads, cache_gib)
    print(json.dumps({"ready": genai.__version__}), file=out)
    for line in sys.stdin:
        print(json.dumps({"answers": run(pipeline, **json.loads(line))}), file=out)


if __name__ == "__main__":
    main()
