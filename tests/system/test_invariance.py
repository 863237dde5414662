"""The promise of the house on the real model: the same tokens for a request, whatever happens around it."""

import random

import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.engine import speculation
from lightwell.engine.draft_model import DraftModel
from lightwell.engine.engine import Engine
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.events import Admitted, EventLog, Preempted, Sampled, Speculated
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.text import encode_chat, load_template, load_tokenizer

pytestmark = pytest.mark.slow

BLOCKS, OUTPUT = 400, 20
QUESTIONS = ["Why is the sky blue?", "Write a haiku about the sea.", "Count to ten.", "Wer war Goethe? 🦉"]
PASSAGE = "The lamp room of the lighthouse had not been entered since the storm, and the keeper said nothing of it. "


@pytest.fixture(scope="module")
def checkpoint(smollm2):
    return open_checkpoint(smollm2)


@pytest.fixture(scope="module", params=["f16", "int8"])
def runtime(checkpoint, request):
    runtime = CpuRuntime(kv_cache_dtype=request.param)
    runtime.load(checkpoint)
    runtime.allocate(BLOCKS)
    return runtime


@pytest.fixture(scope="module")
def requests(checkpoint) -> list[Request]:
    """Greedy and seeded requests of several lengths, two of which share a long beginning."""
    tokenizer, template = load_tokenizer(checkpoint), load_template(checkpoint)
    prompts = [*QUESTIONS, PASSAGE * 4 + "What happened?", PASSAGE * 4 + "Who is the keeper?", PASSAGE * 9]
    made = []
    for number, prompt in enumerate(prompts):
        tokens = encode_chat(tokenizer, template, [{"role": "user", "content": prompt}])
        sampling = SamplingParams(temperature=0 if number % 2 else 0.9, top_p=0.95, seed=1000 + number)
        made.append(Request(f"r{number}", tokens, sampling, OUTPUT))
    return made


def run(runtime, requests, speculator=None, **limits) -> tuple[dict[str, list[int]], list]:
    """Tokens by request, and all events, of an engine with these limits on the loaded model."""
    defaults = {"blocks": BLOCKS, "context_tokens": 4096}
    scheduler = Scheduler(SchedulerLimits(**(defaults | limits)))
    engine = Engine(runtime, scheduler, EventLog(), iter(range(10**9)).__next__, speculator)
    for request in requests:
        engine.submit(request)
    while engine.step():
        pass
    events, _, _ = engine.log.read(0)
    tokens: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, Sampled):
            tokens.setdefault(event.request, []).append(event.token)
    return tokens, events


@pytest.fixture(scope="module")
def alone(runtime, requests) -> dict[str, list[int]]:
    """Each request by itself, with a fresh cache and whole prefill."""
    return {r.id: run(runtime, [r], max_step_tokens=4096, prefix_cache=False)[0][r.id] for r in requests}


def strangers(count: int) -> list[Request]:
    """Others in the batch: short and long, greedy, seeded and not."""
    return [
        Request(
            f"x{i}", [(i * 37 + j * 11) % 40000 for j in range(3 + 17 * (i % 9))], SamplingParams(seed=i * 7919), OUTPUT
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("batch", [2, 7, 32])
def test_batch(runtime, requests, alone, batch):
    for start in range(0, len(requests), batch):
        mine = requests[start : start + batch]
        tokens, _ = run(runtime, [*mine, *strangers(batch - len(mine))])
        assert {r.id: tokens[r.id] for r in mine} == {r.id: alone[r.id] for r in mine}


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_chunk_size(runtime, requests, alone, chunk):
    tokens, _ = run(runtime, requests, max_step_tokens=chunk, max_sequences=min(chunk, 8))
    assert tokens == alone


def test_cached_prefix(runtime, requests, alone):
    again = [replace_id(request, "again-") for request in requests]
    tokens, events = run(runtime, [*requests, *again], max_sequences=1, max_step_tokens=64)
    assert tokens == alone | {f"again-{name}": answer for name, answer in alone.items()}
    assert sum(event.cached_tokens for event in events if isinstance(event, Admitted)) > 300


def replace_id(request: Request, prefix: str) -> Request:
    return Request(prefix + request.id, request.tokens, request.sampling, request.max_tokens)


def test_preemption(runtime, requests):
    """Four sequences that start together in a cache that cannot hold all of their answers."""
    longer = [Request(r.id, r.tokens, r.sampling, 60) for r in requests[: len(QUESTIONS)]]
    expected = {r.id: run(runtime, [r], prefix_cache=False)[0][r.id] for r in longer}
    blocks = sum(-(-len(r.tokens) // 32) for r in longer) + 1
    tokens, events = run(runtime, longer, blocks=blocks, watermark=0.0, prefix_cache=False)
    assert tokens == expected
    assert any(isinstance(event, Preempted) for event in events)


def test_priority_and_order_of_arrival(runtime, requests, alone):
    shuffled = [Request(r.id, r.tokens, r.sampling, r.max_tokens, priority=i % 3) for i, r in enumerate(requests[::-1])]
    tokens, _ = run(runtime, shuffled, max_sequences=3)
    assert tokens == alone


@pytest.mark.parametrize("guesser", ["prompt lookup", "draft model", "random"])
@pytest.mark.parametrize("beside", [0, 7])
def test_speculation(runtime, checkpoint, requests, alone, guesser, beside, monkeypatch):
    """Public reports: vllm#41758, mlx-lm#1423, llama.cpp#25618."""
    monkeypatch.setattr(speculation, "_COST_OF_A_TOKEN", 0.01)  # it is to guess, not to be fast
    monkeypatch.setattr(DraftModel, "_cost", lambda self: 0.0)
    speculator = {"prompt lookup": PromptLookup, "draft model": lambda: drafts(checkpoint), "random": Random}[guesser]()
    tokens, events = run(runtime, [*requests, *strangers(beside)], speculator)
    assert {r.id: tokens[r.id] for r in requests} == alone
    assert any(isinstance(event, Speculated) for event in events)


def drafts(checkpoint) -> DraftModel:
    """The model itself, with float32 activations: often right, not always."""
    draft = CpuRuntime(activations="float32")
    draft.load(checkpoint)
    draft.allocate(BLOCKS)
    return DraftModel(draft, SchedulerLimits(blocks=BLOCKS, context_tokens=4096))


class Random:
    """Proposes any tokens at all."""

    def __init__(self) -> None:
        self.drawn = random.Random(3)

    def propose(self, chunks):
        return [[self.drawn.randrange(49152) for _ in range(self.drawn.randrange(6))] for _ in chunks]

    def observe(self, events):
        pass
