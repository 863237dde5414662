"""Metrics: the event log folded into Prometheus counters, gauges and histograms.

Each number is kept once. The collector renders it under our name and, where vLLM has the same thing, under vLLM's names
too, so that existing dashboards, autoscalers and routers keep working. Metric names are public: do not rename them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lightwell.events import (
    FREE_BLOCKS,
    Admitted,
    Blocked,
    Died,
    Embedded,
    Event,
    Finished,
    Loaded,
    Preempted,
    Queued,
    Rejected,
    Reused,
    Sampled,
    Speculated,
    Stepped,
)
from lightwell.units import Seconds, Tokens

_LABELS = ("model_name", "engine")
_WAIT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_LENGTHS = tuple(2**power for power in range(18))
_BATCHES = tuple(2**power for power in range(11))

# Our name without the prefix, its meaning, and vLLM's names for the same number (the older ones are still in use).
_COUNTERS = {
    "prompt_tokens": ("Prompt tokens of requests that produced a token or a vector.", ["prompt_tokens"]),
    "generation_tokens": ("Tokens generated.", ["generation_tokens"]),
    "prefix_cache_queried_tokens": ("Prompt tokens looked up in the prefix cache.", ["prefix_cache_queries"]),
    "prefix_cache_hit_tokens": ("Prompt tokens found in the prefix cache.", ["prefix_cache_hits"]),
    "kv_offloaded_blocks": ("KV blocks written to the offload store.", []),
    "kv_restored_blocks": ("KV blocks read back from the offload store.", []),
    "preemptions": ("Running sequences that lost their KV blocks.", ["num_preemptions"]),
    "speculative_proposed_tokens": ("Tokens guessed and checked.", ["spec_decode_num_draft_tokens"]),
    "speculative_accepted_tokens": ("Guessed tokens that were right.", ["spec_decode_num_accepted_tokens"]),
    "requests_rejected": ("Requests that can never fit here.", []),
    "engine_deaths": ("Engine processes that ended and were replaced, or given up.", []),
    "requests_overloaded": ("Requests refused because no KV blocks were free for them.", []),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": (
        "From queue to first token.",
        _WAIT_SECONDS,
        ["time_to_first_token_seconds"],
    ),
    "inter_token_latency_seconds": (
        "Between two tokens of one answer.",
        _STEP_SECONDS,
        ["inter_token_latency_seconds", "time_per_output_token_seconds"],
    ),
    "e2e_request_latency_seconds": ("From the queue to the end.", _WAIT_SECONDS, ["e2e_request_latency_seconds"]),
    "request_queue_time_seconds": ("Waiting for the first blocks.", _WAIT_SECONDS, ["request_queue_time_seconds"]),
    "request_prefill_time_seconds": (
        "From first blocks to first token.",
        _WAIT_SECONDS,
        ["request_prefill_time_seconds"],
    ),
    "request_decode_time_seconds": (
        "From first token to last.",
        _WAIT_SECONDS,
        ["request_decode_time_seconds"],
    ),
    "request_prompt_tokens": ("Prompt length.", _LENGTHS, ["request_prompt_tokens"]),
    "request_generation_tokens": ("Answer length.", _LENGTHS, ["request_generation_tokens"]),
    "step_duration_seconds": ("One pass through the model.", _STEP_SECONDS, []),
    "step_sequences": ("Batch size: sequences in one step.", _BATCHES, []),
    "step_tokens": ("Tokens computed in one step.", _LENGTHS, ["iteration_tokens_total"]),
}
_GAUGES = {
    "requests_running": ("Requests in the batch.", ["num_requests_running"]),
    "requests_waiting": ("Requests in the queue.", ["num_requests_waiting"]),
    "kv_usage_ratio": ("Share of KV blocks held by sequences.", ["kv_cache_usage_perc", "gpu_cache_usage_perc"]),
}
_FINISHED = ("requests_finished", "Requests that ended, by reason.", ["request_success"])

_BLOCKED: tuple[str, str, list[str]] = (
    "requests_blocked",
    "Times that the head of the queue had to wait, by what for: blocks, sequences or batch.",
    [],
)


@dataclass(slots=True)
class _Open:
    """What must be remembered of a request between its events."""

    queued_at: Seconds
    prompt_tokens: Tokens
    running: bool = False
    preempted: bool = False
    admitted_at: Seconds | None = None
    first_at: Seconds | None = None
    last_at: Seconds = 0.0
    stopped: bool = False  # by a stop string, which the gateway finds and the engine sees as an abort


class Metrics(Collector):
    """``read`` is a reader of the event log; ``render`` writes the text that Prometheus scrapes."""

    def __init__(self, model_name: str, engine: str = "0") -> None:
        self._labels = (model_name, engine)
        self._open: dict[str, _Open] = {}
        self._used_blocks, self._total_blocks = 0, 0
        self._families: list[tuple[Counter | Histogram, str, list[str]]] = []
        self._counters = {name: self._counter(name, *facts) for name, facts in _COUNTERS.items()}
        self._histograms = {name: self._histogram(name, *facts) for name, facts in _HISTOGRAMS.items()}
        name, meaning, aliases = _FINISHED
        self._finished = Counter(f"lightwell_{name}", meaning, (*_LABELS, "finished_reason"), registry=None)
        self._families.append((self._finished, name, aliases))
        name, meaning, aliases = _BLOCKED
        self._waits = Counter(f"lightwell_{name}", meaning, (*_LABELS, "reason"), registry=None)
        self._families.append((self._waits, name, aliases))
        self._folds: dict[type, Callable[[Any], None]] = {
            Queued: self._queued,
            Admitted: self._admitted,
            Reused: self._reused,
            Embedded: self._embedded,
            Sampled: self._sampled,
            Speculated: self._speculated,
            Preempted: self._preempted,
            Finished: self._ended,
            Rejected: self._rejected,
            Blocked: self._blocked,
            Stepped: self._stepped,
            Loaded: self._loaded,
            Died: self._died,
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def read(self, events: list[Event]) -> None:
        """Fold the events of one frame, in order."""
        for event in events:
            if (fold := self._folds.get(type(event))) is not None:
                fold(event)

    def stopped(self, request: str) -> None:
        """Note that a stop string ended this request: the abort that follows is a normal end."""
        if (open_request := self._open.get(request)) is not None:
            open_request.stopped = True

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        for source, name, aliases in self._families:
            for family in source.collect():
                yield from _under_all_names(family, name, aliases)
        for name, value in self._levels().items():
            meaning, aliases = _GAUGES[name]
            gauge = GaugeMetricFamily(f"lightwell_{name}", meaning, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield from _under_all_names(gauge, name, aliases)

    def _levels(self) -> dict[str, float]:
        running = sum(request.running for request in self._open.values())
        used = self._used_blocks / self._total_blocks if running and self._total_blocks else 0.0
        return {"requests_running": running, "requests_waiting": len(self._open) - running, "kv_usage_ratio": used}

    def _counter(self, name: str, meaning: str, aliases: list[str]) -> Counter:
        counter = Counter(f"lightwell_{name}", meaning, _LABELS, registry=None)
        self._families.append((counter, name, aliases))
        return counter.labels(*self._labels)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], aliases: list[str]) -> Histogram:
        histogram = Histogram(f"lightwell_{name}", meaning, _LABELS, buckets=buckets, registry=None)
        self._families.append((histogram, name, aliases))
        return histogram.labels(*self._labels)

    def _count(self, name: str, amount: float = 1) -> None:
        self._counters[name].inc(amount)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    # One fold for each kind of event.

    def _queued(self, event: Queued) -> None:
        self._open[event.request] = _Open(event.at, event.prompt_tokens)

    def _admitted(self, event: Admitted) -> None:
        request = self._open.get(event.request)
        if request is None:
            return
        request.running = True
        if not event.resumed:
            request.admitted_at = event.at
            self._observe("request_queue_time_seconds", event.waited)
            self._count("prefix_cache_queried_tokens", request.prompt_tokens)
            self._count("prefix_cache_hit_tokens", event.cached_tokens)

    def _reused(self, event: Reused) -> None:
        request = self._open.get(event.request)
        if request is not None and not request.preempted:
            self._count("prefix_cache_hit_tokens", event.tokens)

    def _embedded(self, event: Embedded) -> None:
        if (request := self._open.get(event.request)) is not None:
            self._count("prompt_tokens", request.prompt_tokens)

    def _sampled(self, event: Sampled) -> None:
        self._count("generation_tokens")
        request = self._open.get(event.request)
        if request is None:
            return
        if request.first_at is None:
            self._first_token(request, event.at)
        else:
            self._observe("inter_token_latency_seconds", event.at - request.last_at)
        request.last_at = event.at

    def _first_token(self, request: _Open, at: Seconds) -> None:
        request.first_at = at
        self._count("prompt_tokens", request.prompt_tokens)
        self._observe("time_to_first_token_seconds", at - request.queued_at)
        if request.admitted_at is not None:
            self._observe("request_prefill_time_seconds", at - request.admitted_at)

    def _speculated(self, event: Speculated) -> None:
        self._count("speculative_proposed_tokens", event.proposed)
        self._count("speculative_accepted_tokens", event.accepted)

    def _preempted(self, event: Preempted) -> None:
        self._count("preemptions")
        if (request := self._open.get(event.request)) is not None:
            request.running, request.preempted = False, True

    def _ended(self, event: Finished) -> None:
        request = self._open.pop(event.request, None)
        if request is None:
            return
        self._count_end("stop" if request.stopped else event.reason)
        self._observe("e2e_request_latency_seconds", event.at - request.queued_at)
        if request.first_at is not None:
            self._observe("request_prompt_tokens", event.prompt_tokens)
            self._observe("request_generation_tokens", event.output_tokens)
            self._observe("request_decode_time_seconds", request.last_at - request.first_at)

    def _count_end(self, reason: str) -> None:
        self._finished.labels(*self._labels, reason).inc()

    def _rejected(self, event: Rejected) -> None:
        self._open.pop(event.request, None)
        self._count("requests_overloaded" if event.limit == FREE_BLOCKS else "requests_rejected")

    def _blocked(self, event: Blocked) -> None:
        self._waits.labels(*self._labels, event.reason).inc()

    def _stepped(self, event: Stepped) -> None:
        self._used_blocks, self._total_blocks = event.used_blocks, event.total_blocks
        self._observe("step_duration_seconds", event.duration)
        self._observe("step_sequences", event.sequences)
        self._observe("step_tokens", event.tokens)
        self._count("kv_offloaded_blocks", event.offloaded_blocks)
        self._count("kv_restored_blocks", event.restored_blocks)

    def _loaded(self, event: Loaded) -> None:
        self._used_blocks, self._total_blocks = 0, event.kv_blocks

    def _died(self, event: Died) -> None:
        """What ran waits again, until it is admitted to the next engine."""
        self._count("engine_deaths")
        self._used_blocks = 0
        for request in self._open.values():
            request.running = False


def _under_all_names(family: Metric, name: str, aliases: Iterable[str]) -> Iterator[Metric]:
    """The family under our name, then under each of vLLM's; without the ``_created`` series, which nobody reads."""
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    for full_name in (f"lightwell_{name}", *(f"vllm:{alias}" for alias in aliases)):
        copy = Metric(full_name, family.documentation, family.type)
        copy.samples = [sample._replace(name=full_name + sample.name[len(f"lightwell_{name}") :]) for sample in samples]
        yield copy
