"""Embeddings of the real model: the same bits whatever happens around them, and vectors that mean something."""

import numpy as np
import openai
import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.events import Admitted, Embedded, EventLog, Preempted
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.text import load_tokenizer
from tests.system.test_server import server
from tests.tiny_gguf import write_tiny_gguf

BLOCKS = 200
GREEDY = SamplingParams(temperature=0)
TEXTS = [
    "The keeper of the lighthouse said nothing of the storm. " * 12,
    "The keeper of the lighthouse said nothing of the storm. " * 7,
    "Why is the sky blue?",
    "Sea",
]


def run(runtime, requests: list[Request], urgent: Request | None = None, **limits) -> tuple[dict[str, bytes], list]:
    """Vectors by request, and all events. ``urgent`` comes after four steps."""
    scheduler = Scheduler(SchedulerLimits(**({"blocks": BLOCKS, "context_tokens": 2048} | limits)))
    engine = Engine(runtime, scheduler, EventLog(), iter(range(10**9)).__next__)
    for request in requests:
        engine.submit(request)
    if urgent is not None:
        for _ in range(4):
            engine.step()
        engine.submit(urgent)
    while engine.step():
        pass
    events, _, _ = engine.log.read(0)
    return {event.request: event.values for event in events if isinstance(event, Embedded)}, events


@pytest.fixture(scope="module")
def checkpoint(smollm2):
    return open_checkpoint(smollm2)


@pytest.fixture(scope="module", params=["f16", "int8"])
def runtime(checkpoint, request):
    runtime = CpuRuntime(kv_cache_dtype=request.param)
    runtime.load(checkpoint)
    runtime.allocate(BLOCKS)
    return runtime


@pytest.fixture(scope="module", params=["last", "mean"])
def requests(checkpoint, request) -> list[Request]:
    tokenizer = load_tokenizer(checkpoint)
    return [
        Request(f"r{n}", tokenizer.encode_prompt(text), GREEDY, 0, pooling=request.param)
        for n, text in enumerate(TEXTS)
    ]


@pytest.fixture(scope="module")
def alone(runtime, requests) -> dict[str, bytes]:
    return {r.id: run(runtime, [r], max_step_tokens=2048, prefix_cache=False)[0][r.id] for r in requests}


@pytest.mark.slow
def test_company_chunks_and_cache_change_no_bit(runtime, requests, alone):
    strangers = [Request(f"x{n}", [7 * n + m for m in range(3 + 20 * n)], GREEDY, 12) for n in range(6)]
    vectors, _ = run(runtime, [*strangers, *requests])
    assert vectors == alone
    for chunk in (5, 16, 64):
        assert run(runtime, requests, max_step_tokens=chunk, max_sequences=min(chunk, 8))[0] == alone
    again = [Request(f"again-{r.id}", r.tokens, GREEDY, 0, pooling=r.pooling) for r in requests]
    vectors, events = run(runtime, [*requests, *again], max_sequences=1)
    assert vectors == alone | {f"again-{name}": vector for name, vector in alone.items()}
    cached = sum(event.cached_tokens for event in events if isinstance(event, Admitted))
    assert cached > 100 if requests[0].pooling == "last" else cached == 0


@pytest.mark.slow
def test_preemption_changes_no_bit(runtime, requests, alone):
    low = Request("r0", requests[0].tokens, GREEDY, 0, pooling=requests[0].pooling, priority=1)
    urgent = Request("urgent", list(range(90)), GREEDY, 10)
    blocks = -(-len(low.tokens) // 32) + 1
    vectors, events = run(runtime, [low], urgent, blocks=blocks, watermark=0.0, max_step_tokens=16, max_sequences=4)
    assert any(isinstance(event, Preempted) for event in events)
    assert vectors["r0"] == alone["r0"]


@pytest.mark.slow
def test_texts_that_mean_the_same_are_nearer(runtime, checkpoint):
    texts = ["The cat sleeps on the sofa.", "A cat is sleeping on a couch.", "Shares fell sharply after the report."]
    tokenizer = load_tokenizer(checkpoint)
    requests = [Request(str(n), tokenizer.encode_prompt(t), GREEDY, 0, pooling="mean") for n, t in enumerate(texts)]
    found, _ = run(runtime, requests)
    vectors = [np.frombuffer(found[request.id], "<f4") for request in requests]
    assert np.allclose([vector @ vector for vector in vectors], 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > max(vectors[0] @ vectors[2], vectors[1] @ vectors[2])


def test_a_server_embeds_many_inputs_beside_a_chat(tmp_path):
    model = write_tiny_gguf(tmp_path / "tiny.gguf", context=2048)
    with server(str(model), "--served-model-name", "tiny", log=tmp_path / "log") as (url, _):
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        stream = api.completions.create(model="tiny", prompt="Once", max_tokens=200, stream=True)
        inputs = [f"Text number {n} of several." * (1 + n % 9) for n in range(70)]  # more than run at once
        answer = api.embeddings.create(model="tiny", input=inputs)
        assert [each.index for each in answer.data] == list(range(70))
        alone = api.embeddings.create(model="tiny", input=inputs[8], encoding_format="float")
        assert np.array_equal(np.float32(answer.data[8].embedding), np.float32(alone.data[0].embedding))
        assert len({tuple(each.embedding) for each in answer.data}) == 70
        assert api.embeddings.create(
            model="tiny", input="a", dimensions=len(alone.data[0].embedding), extra_body={"pooling": "mean"}
        )
        assert sum(1 for _ in stream) > 1
