"""Replaying a trace of requests on an engine, in real or virtual time, and what is counted on the way.

A request asks for no length, as chat clients do, so its longest possible answer is the room left in the window; its
client ends it after the tokens that the trace says.
"""

import csv
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lightwell.engine.clocks import VirtualClock
from lightwell.engine.cost_model import Load, load_of
from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.errors import StartupError
from lightwell.events import Sampled
from lightwell.runtimes.base import Floats, StepInput, StepOutput
from lightwell.runtimes.fake import FakeRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.units import Seconds, Tokens

# Microsoft's "Azure LLM inference trace 2023", conversations (github.com/Azure/AzurePublicDataset, described in Patel
# et al., "Splitwise", ISCA 2024): median and mean of prompts and answers, and the longest answer. Log-normal lengths
# with the same median and mean stand for it where the trace is not at hand; arrivals are then a Poisson process.
_PROMPT_MEDIAN, _PROMPT_SIGMA = 1020, 0.50  # mean 1155
_ANSWER_MEDIAN, _ANSWER_SIGMA, _ANSWER_LONGEST = 129, 0.99, 1000  # mean 211
_SEED = 7

Wait: TypeAlias = Callable[[Seconds], None]


@dataclass(frozen=True)
class Arrival:
    at: Seconds
    prompt_tokens: Tokens
    answer_tokens: Tokens


@dataclass
class Outcome:
    """``allocated`` and ``held`` are slots of the KV cache, summed over the requests at their ends."""

    seconds: Seconds = 0.0
    output_tokens: Tokens = 0
    ttft: list[Seconds] = field(default_factory=list)
    allocated: Tokens = 0
    held: Tokens = 0

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def wasted(self) -> float:
        """The share of allocated slots that never held a token."""
        return 1 - self.held / self.allocated


def read_trace(path: Path, count: int) -> list[Arrival]:
    """The first ``count`` rows of a CSV file with TIMESTAMP, ContextTokens and GeneratedTokens. Raises StartupError."""
    try:
        with path.open(newline="") as file:
            rows = list(islice(csv.DictReader(file), count))
        if not rows:
            raise ValueError("it has no rows")
        times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
        return [
            Arrival((at - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for at, row in zip(times, rows, strict=True)
        ]
    except (OSError, KeyError, ValueError) as error:
        raise StartupError(f"{path} is no trace with TIMESTAMP, ContextTokens and GeneratedTokens: {error}") from None


def drawn_trace(count: int) -> list[Arrival]:
    """Requests like those of the trace, the same at every call, one a second on average."""
    draw, at = random.Random(_SEED), 0.0
    arrivals = []
    for _ in range(count):
        at += draw.expovariate(1.0)
        prompt = round(_PROMPT_MEDIAN * draw.lognormvariate(0, _PROMPT_SIGMA))
        answer = round(_ANSWER_MEDIAN * draw.lognormvariate(0, _ANSWER_SIGMA))
        arrivals.append(Arrival(at, prompt, min(max(answer, 1), _ANSWER_LONGEST)))
    return arrivals


def scaled(arrivals: list[Arrival], rate: float, prompt_scale: float, context: Tokens) -> list[Arrival]:
    """``rate`` requests a second on average, prompts times ``prompt_scale``, cut so that the answer fits the window."""
    stretch = len(arrivals) / rate / max(arrivals[-1].at, 1e-9)
    return [
        Arrival(
            arrival.at * stretch,
            max(1, min(round(arrival.prompt_tokens * prompt_scale), context - arrival.answer_tokens)),
            arrival.answer_tokens,
        )
        for arrival in arrivals
    ]


def replay(engine: Engine, arrivals: list[Arrival], vocab: int, clock: Callable[[], Seconds], wait: Wait) -> Outcome:
    """Send each request at its time and run until all have ended. ``wait(seconds)`` passes time while nothing runs."""
    draw, context, begin = random.Random(_SEED), engine.scheduler.limits.context_tokens, clock()
    outcome, cursor, due = Outcome(), 0, list(reversed(arrivals))
    written: dict[str, Tokens] = {}
    while due or engine.has_work:
        while due and begin + due[-1].at <= clock():
            arrival = due.pop()
            tokens = [draw.randrange(vocab) for _ in range(arrival.prompt_tokens)]
            room = context - arrival.prompt_tokens
            engine.submit(Request(str(len(due)), tokens, SamplingParams(temperature=0), room))
            written[str(len(due))] = 0
        if not engine.has_work:
            wait(begin + due[-1].at - clock())
            continue
        engine.step()
        events, cursor, _ = engine.log.read(cursor)
        for event in events:
            if isinstance(event, Sampled):
                _take(engine, event, arrivals[len(arrivals) - 1 - int(event.request)], begin, written, outcome)
    outcome.seconds = clock() - begin
    return outcome


def _take(
    engine: Engine, event: Sampled, arrival: Arrival, begin: Seconds, written: dict[str, Tokens], outcome: Outcome
) -> None:
    if not written[event.request]:
        outcome.ttft.append(event.at - begin - arrival.at)
    written[event.request] += 1
    outcome.output_tokens += 1
    if written[event.request] == arrival.answer_tokens:
        _count_slots(engine, event.request, outcome)
        engine.abort(event.request)


def _count_slots(engine: Engine, id: str, outcome: Outcome) -> None:
    for sequence in engine.scheduler.running:
        if sequence.request.id == id:
            outcome.allocated += len(sequence.table.blocks) * engine.scheduler.limits.block_tokens
            outcome.held += sequence.computed


class ModelledRuntime(FakeRuntime):
    """A runtime that computes nothing: a step takes as long as ``step_seconds`` says, on a clock that stands still
    otherwise."""

    def __init__(self, clock: VirtualClock, step_seconds: Callable[[Load], Seconds]) -> None:
        super().__init__()
        self._clock, self._step_seconds = clock, step_seconds

    def execute(self, step: StepInput, logits: Floats | None = None) -> StepOutput:
        starts = step.starts.tolist()
        chunks = [(int(step.positions[a]), b - a) for a, b in pairwise(starts)]
        seconds = self._step_seconds(load_of(chunks))
        self._clock.now += seconds
        return StepOutput(np.ones(len(step.logit_rows), np.int32), seconds)


def accelerator_seconds(load: Load) -> Seconds:
    """A 7B model in 16 bits on an accelerator with 2.0 TB/s and 300 TFLOP/s, at half of the latter: 13.5 GB of weights
    are read in each step, 0.5 MB of keys and values for each token of context, and a token is 13.5 GFLOP."""
    rows = load.decoding + load.prefill
    read = 13.5e9 / 2.0e12 + load.decoding_context * 0.5e6 / 2.0e12
    return max(read, rows * 13.5e9 / 150e12) + 0.001


def sleep(seconds: Seconds) -> None:
    time.sleep(max(0.0, seconds))
