"""What is asked of every subject: the kinds of work, and the setting that a subject is started in.

Served work is a ``Load`` of the command line's own client, so that every server is measured by the same one.
"""

from dataclasses import dataclass, replace

from lightwell.cli.load import Answer, Load, metrics
from lightwell.units import Tokens

Metrics = dict[str, float]  # names end in their unit


class Unavailable(Exception):
    """A subject cannot be measured here; says why, in words that stand in the table."""


@dataclass(frozen=True)
class Setting:
    """Subjects keep one process for all rows of a setting. ``isa`` None is the best one of the machine."""

    model: str = "smollm2"
    threads: int = 2
    isa: str | None = None


@dataclass(frozen=True)
class Decode:
    """``tokens`` tokens for each of ``batch`` sequences that have ``context`` already: output tokens per second."""

    tokens: Tokens = 256
    batch: int = 1
    context: Tokens = 0

    @property
    def mean_context(self) -> float:
        """Tokens that a step sees, on average over the run."""
        return self.context + (self.tokens + 1) / 2


@dataclass(frozen=True)
class Prefill:
    """One prompt that nobody has seen before: prompt tokens per second."""

    tokens: Tokens


@dataclass(frozen=True)
class Start:
    """From the start of the process to the first token of its first answer."""


@dataclass(frozen=True)
class Memory:
    """What a new process holds under ``load``: at its end, and at its end over a tenth of the way (1 is level)."""

    load: Load


Workload = Decode | Prefill | Load | Start | Memory


def as_load(workload: Decode | Prefill, seed: int) -> Load:
    """The same work as one request, for a subject that is only reached through requests."""
    if isinstance(workload, Prefill):
        return Load(1, 1, workload.tokens, 1, seed=seed)
    if workload.batch > 1 or workload.context:
        raise Unavailable("has no way to decode a batch of long contexts by itself")
    return Load(1, 1, 1, workload.tokens, seed=seed)


def rate_of(workload: Decode | Prefill, answer: Answer) -> Metrics:
    """Of decoding without the first token, which is the prompt's; of a prefill until its one token came."""
    if isinstance(workload, Prefill):
        return {"tokens_per_second": workload.tokens / (answer.arrivals[0] - answer.sent)}
    return {"tokens_per_second": (answer.tokens - 1) / (answer.arrivals[-1] - answer.arrivals[0])}


def served_metrics(answers: list[Answer], load: Load) -> Metrics:
    """Raises Unavailable where an answer is not as long as asked: its tokens per second would mean something else."""
    short = [answer.tokens for answer in answers if answer.tokens != load.output_tokens]
    if short or len(answers) != load.requests:
        lengths = f"of {', '.join(map(str, sorted(set(short))))} tokens" if short else f"{len(answers)} in number"
        raise Unavailable(
            f"was asked for {load.requests} answers of {load.output_tokens} tokens and gave some {lengths}"
        )
    return metrics(answers)


def seeded(load: Load, seed: int) -> Load:
    return replace(load, seed=seed)
