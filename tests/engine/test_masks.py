"""Answers that follow a grammar, on a tiny real model: alone, in company, with guesses, when they go on elsewhere."""

import json
import random
import time
from concurrent.futures import wait

import pytest
from msgspec import structs

from lightwell.checkpoints import open_checkpoint
from lightwell.engine.engine import Engine
from lightwell.engine.masks import StepMasks
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.errors import InvalidRequest
from lightwell.events import Event, EventLog, Finished, Preempted, Sampled, Speculated
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.grammar import Grammars
from lightwell.sampling.params import SamplingParams
from lightwell.text import load_tokenizer
from tests.tiny_gguf import write_tiny_gguf

BLOCKS = 60
DIGITS = 'start: /[0-9]{5,12}/ "!"\n'
LIST = 'start: "[" item ("," item){2,4} "]"\nitem: "yes" | "no" | "maybe"\n'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return load_tokenizer(checkpoint)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(lambda: tokenizer)


@pytest.fixture(scope="module")
def runtime(checkpoint):
    runtime = CpuRuntime(threads=1)
    runtime.load(checkpoint)
    runtime.allocate(BLOCKS)
    return runtime


@pytest.fixture
def make_engine(runtime, grammars, checkpoint):
    def make(speculator=None, blocks=BLOCKS, masks=True, kind=StepMasks) -> Engine:
        limits = SchedulerLimits(blocks=blocks, context_tokens=512, prefix_cache=False)
        read = kind(grammars, checkpoint.spec.vocab) if masks else None
        return Engine(runtime, Scheduler(limits), EventLog(), time.monotonic, speculator, read)

    return make


def request(id: str, grammar: str, tokenizer, seed: int | None = None, max_tokens: int = 60) -> Request:
    sampling = SamplingParams(temperature=0 if seed is None else 1.0, seed=seed or 0)
    return Request(id, [5, 6, 7, 8] * 6, sampling, max_tokens, tokenizer.stop_ids, grammar=grammar)


def run(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    for each in requests:
        engine.submit(each)
    while engine.step():
        engine.check()
    tokens: dict[str, list[int]] = {each.id: [] for each in requests}
    for event in events(engine, Sampled):
        tokens[event.request].append(event.token)
    return tokens


def events(engine: Engine, kind: type[Event]) -> list:
    return [event for event in engine.log.read(0)[0] if isinstance(event, kind)]


class ReadAtOnce(StepMasks):
    """No request waits for its grammar, so that all start together however busy the machine is."""

    def read(self, request):
        reading = super().read(request)
        wait([reading])
        return reading


class Anything:
    """Guesses that the grammar mostly forbids."""

    def __init__(self) -> None:
        self.drawn = random.Random(4)

    def propose(self, chunks):
        return [[self.drawn.randrange(256) for _ in range(3)] for _ in chunks]

    def observe(self, events):
        pass


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_an_answer_follows_its_grammar(make_engine, tokenizer, seed):
    engine = make_engine()
    tokens = run(engine, request("digits", DIGITS, tokenizer, seed), request("list", LIST, tokenizer, seed))
    digits, listed = (tokenizer.decode(tokens[id]) for id in ("digits", "list"))
    assert digits[:-1].isdigit()
    assert digits.endswith("!")
    assert 3 <= len(json.loads(listed.replace("yes", "1").replace("no", "0").replace("maybe", "2"))) <= 5
    assert {event.reason for event in events(engine, Finished)} == {"stop"}


@pytest.mark.parametrize(
    "speculator", [lambda: None, PromptLookup, Anything], ids=["none", "prompt lookup", "anything"]
)
@pytest.mark.parametrize("blocks", [BLOCKS, 5])
def test_company_guesses_and_preemption_change_nothing(make_engine, tokenizer, speculator, blocks):
    """Public report: vllm#9423 (speculation breaks guided decoding)."""
    asked = [request(f"r{i}", (DIGITS, LIST, "")[i % 3], tokenizer, i + 1) for i in range(6)]
    alone = {each.id: run(make_engine(), each)[each.id] for each in asked}
    engine = make_engine(speculator(), blocks, kind=ReadAtOnce)
    assert run(engine, *asked) == alone
    assert bool(events(engine, Preempted)) == (blocks == 5)
    assert bool(events(engine, Speculated)) >= (speculator is Anything)


def test_an_answer_goes_on_in_its_grammar(make_engine, tokenizer):
    asked = request("r", LIST, tokenizer, 9)
    whole = run(make_engine(), asked)["r"]
    for written in range(1, len(whole)):
        assert run(make_engine(), structs.replace(asked, answer=whole[:written]))["r"] == whole[written:]


def test_without_room_an_answer_ends_unfinished(make_engine, tokenizer):
    engine = make_engine()
    assert len(run(engine, request("r", DIGITS, tokenizer, 1, max_tokens=3))["r"]) == 3
    assert [event.reason for event in events(engine, Finished)] == ["length"]


def test_a_grammar_that_cannot_be_read_ends_its_request_alone(make_engine, tokenizer):
    engine = make_engine()
    tokens = run(engine, request("bad", "start: nothing\n", tokenizer), request("good", DIGITS, tokenizer))
    assert tokens["bad"] == []
    assert tokenizer.decode(tokens["good"]).endswith("!")
    [bad] = [event for event in events(engine, Finished) if event.request == "bad"]
    assert bad.reason == "error"
    assert "nothing" in bad.detail


def test_an_aborted_request_is_over_at_any_moment(make_engine, tokenizer):
    for steps in range(6):
        engine = make_engine()
        engine.submit(request("r", DIGITS, tokenizer, 1))
        for _ in range(steps):
            engine.step()
        engine.abort("r")
        while engine.step():
            pass
        assert [event.request for event in events(engine, Finished)] == ["r"]
        assert engine.scheduler.pool.free_blocks == BLOCKS


def test_an_engine_without_grammars_says_so(make_engine, tokenizer):
    with pytest.raises(InvalidRequest, match="no grammars"):
        make_engine(masks=False).submit(request("r", DIGITS, tokenizer))


def test_an_id_is_open_while_its_grammar_is_read(make_engine, tokenizer):
    engine = make_engine()
    engine.submit(request("r", DIGITS, tokenizer))
    with pytest.raises(InvalidRequest, match="open already"):
        engine.submit(request("r", DIGITS, tokenizer))


class KnowsTheStart:
    """Guesses this answer, and that it goes on after its end."""

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer

    def propose(self, chunks):
        return [self.answer[chunk.sequence.output_tokens :][:6] if chunk.samples else [] for chunk in chunks]

    def observe(self, events):
        pass


def test_right_guesses_never_lead_past_the_last_mask(make_engine, tokenizer):
    """Neither after the end of an answer that is not to stop there, nor where a grammar gets too complex on the way."""
    [end] = [token for token in tokenizer.stop_ids if token == tokenizer.eos_id]
    endless = structs.replace(request("endless", 'start: "ab"\n', tokenizer, max_tokens=12), stop_tokens=frozenset())
    alone = run(make_engine(), endless)["endless"]
    assert set(alone[2:]) <= tokenizer.stop_ids
    names = {f"p{i}": {} for i in range(3000)}
    complex = f'start: "x" ("y" | %json {json.dumps({"type": "object", "properties": names})})'
    for guess in (alone, [alone[0], alone[1], end, end, end, end], [*tokenizer.encode('x{"p', special=False)]):
        assert run(make_engine(KnowsTheStart(guess)), endless)["endless"] == alone
        for seed in range(4):
            too_much = request("too much", complex, tokenizer, seed + 1, max_tokens=8)
            plain, guessed = make_engine(), make_engine(KnowsTheStart(guess))
            assert run(guessed, too_much) == run(plain, too_much)
            assert [e.reason for e in events(guessed, Finished)] == [e.reason for e in events(plain, Finished)]
