"""``lightwell bench speculate``: one stream with speculation and without, in turns, where it helps and where not.

Both answers have to be the same, token by token. With a draft model it is also computed, at each position of what the
model itself wrote, how often both draw the same token, beside what rejection sampling would accept there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.cli.bench_report import Runs, as_json, show
from lightwell.engine.clocks import wall_clock
from lightwell.engine.draft_model import DraftModel
from lightwell.engine.engine import Engine
from lightwell.engine.prompt_lookup import PromptLookup
from lightwell.engine.request import Request
from lightwell.engine.scheduler import Scheduler, SchedulerLimits
from lightwell.engine.speculation import Speculator
from lightwell.errors import InvariantError
from lightwell.events import EventLog, Sampled, Speculated
from lightwell.host.build import check_same_tokens
from lightwell.host.local import generate
from lightwell.host.memory import blocks_for
from lightwell.runtimes.base import Floats, StepInput, sampling_rows
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.sampling.reference import choose, log_probabilities
from lightwell.text import ChatTemplate, Tokenizer, load_template, load_tokenizer
from lightwell.text.chat import encode_chat
from lightwell.units import Seconds, Tokens

_NOTES = (
    "The ferry to the island leaves at a quarter past seven from the old pier, not from the new one. Tickets are "
    "sold on board and cost four coins for adults and two for children. Dogs travel free, but must be kept on a "
    "lead. In winter the last boat back leaves at five in the afternoon, in summer at nine in the evening. If the "
    "wind is stronger than force eight the ferry does not sail, and a notice is put up at the harbour office.",
    "Before you switch on the kiln, make sure that the shelves are dry and that no glaze touches them. Load the "
    "tall pieces at the back and leave a finger's width between all pieces. Set the first ramp to one hundred "
    "degrees an hour until six hundred degrees, then hold for ten minutes. The second ramp is one hundred and "
    "fifty degrees an hour until one thousand and sixty degrees. Let the kiln cool for twelve hours before you "
    "open the door.",
    "The committee met on Tuesday and agreed on three points. The library will open on Sundays from ten to four, "
    "starting in March. The reading room on the second floor will be closed for repairs during April and May. The "
    "budget for new books will be raised by eight percent, half of it for the children's department. The next "
    "meeting is on the second Tuesday of March, and the minutes will be sent to all members.",
)
_QUOTE = "Here is a note:\n\n{note}\n\nSummarise the note, quoting it word for word."
_OPENING = 'The note says: "'  # how an answer begins, so that small models do quote
_TOPICS = ("a lighthouse keeper", "a lost umbrella", "the first day of spring", "a clock that runs backwards")
_FREE = "Write a strange short story about {topic}."


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: list[str]
    opening: str
    temperature: float

    def requests(self, tokenizer: Tokenizer, template: ChatTemplate | None, output_tokens: Tokens) -> list[Request]:
        opening, requests = tokenizer.encode(self.opening, special=False), []
        for number, text in enumerate(self.prompts):
            tokens = _encode(tokenizer, template, text) + opening
            sampling = SamplingParams(temperature=self.temperature, seed=number)
            requests.append(Request(f"r{number}", tokens, sampling, output_tokens, tokenizer.stop_ids))
        return requests


WORKLOADS = (
    Workload("quote", [_QUOTE.format(note=note) for note in _NOTES], _OPENING, 0.0),
    Workload("free", [_FREE.format(topic=topic) for topic in _TOPICS], "", 1.0),
)


@dataclass
class Turn:
    """What one engine wrote for a workload, and how long it took from each first token to the last."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: Seconds = 0.0
    proposed: Tokens = 0
    accepted: Tokens = 0

    @property
    def rate(self) -> float:
        return sum(len(answer) - 1 for answer in self.tokens) / self.seconds


def speculate(
    model: str, draft: str | None, output_tokens: Tokens, repeat: int, threads: int | None, json: bool
) -> None:
    """Print tokens per second of both, their ratio and the acceptance, for each workload."""
    checkpoint, drafting = open_checkpoint(pull(model)), open_checkpoint(pull(draft)) if draft else None
    tokenizer, template = load_tokenizer(checkpoint), load_template(checkpoint, None)
    limits = SchedulerLimits(blocks=blocks_for(2048), context_tokens=2048, max_sequences=1, prefix_cache=False)
    runtime = _load(checkpoint, limits, threads)
    draft_runtime = None
    if drafting is not None:
        check_same_tokens(drafting, checkpoint)
        draft_runtime = _load(drafting, limits, threads)
    for workload in WORKLOADS:
        requests = workload.requests(tokenizer, template, output_tokens)
        turns: list[tuple[Turn, Turn]] = []
        for number in range(repeat):
            speculator = DraftModel(draft_runtime, limits) if draft_runtime else PromptLookup()
            kinds = (None, speculator) if number % 2 else (speculator, None)  # whichever is first finds caches colder
            done = {kind: _turn(runtime, limits, requests, kind) for kind in kinds}
            turns.append((done[None], done[speculator]))
        _report(workload.name, turns, json)
        if draft_runtime is not None:
            answers = turns[0][0].tokens
            _compare_acceptance(workload.name, runtime, draft_runtime, checkpoint.spec.vocab, requests, answers, json)


def _encode(tokenizer: Tokenizer, template: ChatTemplate | None, text: str) -> list[int]:
    """As a chat, for a model that has them."""
    if template is None:
        return tokenizer.encode_prompt(text)
    return encode_chat(tokenizer, template, [{"role": "user", "content": text}])


def _load(checkpoint: Checkpoint, limits: SchedulerLimits, threads: int | None) -> CpuRuntime:
    runtime = CpuRuntime(threads=threads)
    runtime.load(checkpoint)
    runtime.allocate(limits.blocks)
    return runtime


def _turn(
    runtime: CpuRuntime, limits: SchedulerLimits, requests: Sequence[Request], speculator: Speculator | None
) -> Turn:
    engine = Engine(runtime, Scheduler(limits), EventLog(), wall_clock, speculator)
    turn = Turn()
    for request in requests:
        answer: list[int] = []
        begin = 0.0
        for event in generate(engine, request):
            if isinstance(event, Sampled):
                begin = begin or time.perf_counter()
                answer.append(event.token)
        turn.seconds += time.perf_counter() - begin
        turn.tokens.append(answer)
    for noted in engine.log.read(0)[0]:
        if isinstance(noted, Speculated):
            turn.proposed += noted.proposed
            turn.accepted += noted.accepted
    return turn


def _report(name: str, turns: list[tuple[Turn, Turn]], json: bool) -> None:
    """Raises InvariantError where speculation changed an answer."""
    for plain, guessed in turns:
        if plain.tokens != guessed.tokens:
            raise InvariantError(f"speculation changed an answer of the workload {name!r}")
    kinds = {
        "without": Runs(tuple(plain.rate for plain, _ in turns)),
        "with": Runs(tuple(guessed.rate for _, guessed in turns)),
    }
    ratio = Runs(tuple(guessed.rate / plain.rate for plain, guessed in turns))
    proposed, accepted = turns[-1][1].proposed, turns[-1][1].accepted
    if json:
        facts = {"workload": name, "proposed": proposed, "accepted": accepted}
        print(as_json("speculate", ratio, "x", **facts, **{kind: runs.values for kind, runs in kinds.items()}))
        return
    for kind, runs in kinds.items():
        print(show(f"{name}, {kind} speculation", runs, "tokens/s"))
    print(show(f"{name}, ratio", ratio, "x", digits=2))
    print(f"{name}: {accepted} of {proposed} guesses were right; the answers are the same")


def _compare_acceptance(
    name: str,
    target: CpuRuntime,
    draft: CpuRuntime,
    vocab: int,
    requests: Sequence[Request],
    answers: list[list[int]],
    json: bool,
) -> None:
    coupled, rejection = [], []
    for request, answer in zip(requests, answers, strict=True):
        known, first = request.tokens + answer, len(request.tokens)
        scores = [_scores(runtime, vocab, known, first) for runtime in (target, draft)]
        for place, (p, q) in enumerate(zip(*scores, strict=True), first):
            coupled.append(choose(p, request.sampling, place) == choose(q, request.sampling, place))
            rejection.append(_overlap(p, q, request.sampling.temperature))
    ours, theirs = float(np.mean(coupled)), float(np.mean(rejection))
    if json:
        print(as_json("acceptance", Runs((ours,)), "share", workload=name, rejection_sampling=theirs))
    else:
        print(f"{name}: one guess is right with probability {ours:.3f}; rejection sampling would accept {theirs:.3f}")


def _scores(runtime: CpuRuntime, vocab: int, known: list[int], first: Tokens) -> Floats:
    """Raw scores (len(known) - first, vocab) for each token from ``first`` on, in its own context."""
    rows = np.arange(first - 1, len(known) - 1, dtype=np.int32)
    sampling = sampling_rows([SamplingParams(temperature=0)] * len(rows), (rows + 1).tolist())
    step = StepInput(
        tokens=np.array(known[:-1], np.int32),
        positions=np.arange(len(known) - 1, dtype=np.int32),
        starts=np.array([0, len(known) - 1], np.int32),
        block_tables=np.arange(blocks_for(len(known)), dtype=np.int32)[None],
        logit_rows=rows,
        sampling=sampling,
    )
    scores = np.empty((len(rows), vocab), np.float32)
    runtime.execute(step, scores)
    return scores


def _overlap(p: Floats, q: Floats, temperature: float) -> float:
    """The probability that rejection sampling accepts a token of q for p (Leviathan et al., 2023, corollary 3.6)."""
    if temperature == 0:
        return float(p.argmax() == q.argmax())
    ours, theirs = (np.exp(log_probabilities(scores / np.float32(temperature))) for scores in (p, q))
    return float(np.minimum(ours, theirs).sum())
