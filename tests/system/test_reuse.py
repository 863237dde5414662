"""On the real model: what came from the middle of another's block, or back from the offload file, gives the same tokens
as what was computed."""

import tempfile

import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.engine.engine import Engine
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.events import EventLog, Finished, Sampled, Stepped
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.text import encode_chat, load_template, load_tokenizer

pytestmark = pytest.mark.slow

BLOCKS, SLOTS, OUTPUT = 40, 200, 24
SYSTEM = "You are the keeper of a lighthouse. You answer in short sentences, and you never speak of the storm. " * 3
QUESTIONS = ["Why is the sky blue?", "What is in the lamp room?", "Who was here before you?"]


@pytest.fixture(scope="module")
def checkpoint(smollm2):
    return open_checkpoint(smollm2)


@pytest.fixture(scope="module", params=["f16", "int8"])
def runtime(checkpoint, request):
    runtime = CpuRuntime(kv_cache_dtype=request.param)
    report = runtime.load(checkpoint)
    runtime.allocate(BLOCKS)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.truncate(SLOTS * report.kv_bytes_per_block)
        runtime.offload_to(file, SLOTS)
        yield runtime


class Server:
    """An engine that answers one request after another and keeps what it cached."""

    def __init__(self, runtime, **limits) -> None:
        made = SchedulerLimits(**{"blocks": BLOCKS, "context_tokens": 2048, "watermark": 0.0} | limits)
        self.engine = Engine(runtime, Scheduler(made), EventLog(), iter(range(10**9)).__next__)

    def answer(self, request: Request) -> list[int]:
        self.engine.submit(request)
        while self.engine.step():
            self.engine.check()
        return [event.token for event in self.of(Sampled) if event.request == request.id]

    def of(self, kind: type) -> list:
        events, _, lost = self.engine.log.read(0)
        assert lost == 0
        return [event for event in events if isinstance(event, kind)]

    def cached(self) -> list[int]:
        return [event.cached_tokens for event in self.of(Finished)]


def cold(runtime, request: Request) -> list[int]:
    """It overwrites the blocks, so a Server that is still asked cannot be compared with it yet."""
    return Server(runtime, prefix_cache=False).answer(request)


@pytest.fixture(scope="module")
def turns(checkpoint, runtime) -> list[Request]:
    """A conversation: each turn holds all of the ones before, with the answers that the model gave. The answers end in
    the middle of blocks."""
    tokenizer, template = load_tokenizer(checkpoint), load_template(checkpoint)
    messages, made = [{"role": "system", "content": SYSTEM}], []
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        tokens = encode_chat(tokenizer, template, messages)
        sampling = SamplingParams(temperature=0.0 if number % 2 else 0.9, seed=number)
        made.append(Request(f"turn{number}", tokens, sampling, OUTPUT))
        answer = tokenizer.decode(cold(runtime, made[-1]))
        messages.append({"role": "assistant", "content": answer})
    return made


def test_turns_that_go_on_in_the_middle_of_a_block(runtime, turns):
    server = Server(runtime)
    answers = [server.answer(request) for request in turns]
    assert answers == [cold(runtime, request) for request in turns]
    assert server.cached()[0] == 0
    assert any(tokens % 32 for tokens in server.cached()), "some began in a block of the turn before"


def test_prompts_that_part_in_the_middle_of_a_block(runtime, turns):
    first = turns[0]
    shared = first.tokens[:75]
    others = [Request(f"r{i}", [*shared, *range(1000 + i, 1020 + i)], first.sampling, OUTPUT) for i in range(3)]
    server = Server(runtime)
    server.answer(first)
    assert [server.answer(request) for request in others] == [cold(runtime, request) for request in others]
    assert server.cached() == [0, 75, 75, 75]


def test_a_conversation_that_left_the_cache_comes_back_from_the_file(runtime, turns):
    server = Server(runtime, offload_slots=SLOTS)
    filling = [5 + 7 * i % 30000 for i in range(BLOCKS * 32 - OUTPUT)]
    answers = []
    for number, request in enumerate(turns):
        answers.append(server.answer(request))
        server.answer(Request(f"stranger{number}", filling, request.sampling, OUTPUT))
    assert answers == [cold(runtime, request) for request in turns]
    assert sum(step.restored_blocks for step in server.of(Stepped)) > len(turns)
    assert min(server.cached()[2:]) > 64
