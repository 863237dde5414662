"""The pipeline from tokens to deltas, without HTTP: text, stop strings, finish reasons, log-probabilities."""

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.engine.request import Request
from lightwell.errors import EngineDied
from lightwell.events import Finished, PromptScored, Sampled, TokenLogprobs
from lightwell.gateway.answer import Answer, Delta, usage
from lightwell.gateway.echo import Echo
from lightwell.gateway.prompt_scores import PromptScores
from lightwell.gateway.shapes import ChatShape, CompletionShape, token_name
from lightwell.sampling.params import SamplingParams
from lightwell.text.detokenizer import Detokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import ControlToken, Vocabulary
from tests.gateway.fake_engine import EOS, TURN_END, byte_tokenizer

TOKENIZER = byte_tokenizer()


def new_answer(*, stop=(), include_stop=False, logprobs=None, stop_tokens=frozenset({EOS})) -> Answer:
    request = Request("r", [1, 2, 3], SamplingParams(logprobs=logprobs), 100, stop_tokens)
    return Answer(0, request, TOKENIZER, Detokenizer(TOKENIZER, stop=stop, include_stop=include_stop))


def sampled(data: bytes, *, scored=False) -> list[Sampled | Finished]:
    return [Sampled(0.0, "r", byte, TokenLogprobs(-1.0, [byte, 0], [-1.0, -2.0]) if scored else None) for byte in data]


def finished(reason="length") -> Finished:
    return Finished(0.0, "r", reason, 3, 0, 0)


def deltas_of(answer: Answer, events, cuts) -> list[Delta]:
    """Feed the events in batches that end at the cuts, until the answer has ended, as the pipeline does."""
    bounds = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    deltas = []
    for begin, end in pairwise(bounds):
        if answer.finish_reason is None:
            deltas.append(answer.feed(events[begin:end]))
    return deltas


CUTS = st.lists(st.integers(0, 60), max_size=20)


@settings(deadline=None)
@given(st.text("abST", max_size=30), st.sampled_from(["STOP", "SS", "ab", "S"]), CUTS, st.booleans())
def test_the_stream_is_the_text_before_the_stop_string_however_it_is_cut(text, stop, cuts, include):
    """Faults 33 and 35."""
    answer = new_answer(stop=[stop], include_stop=include)
    deltas = deltas_of(answer, [*sampled(text.encode()), finished()], cuts)
    before, found, _ = text.partition(stop)
    assert "".join(delta.text for delta in deltas) == before + (found if include else "")
    assert deltas[-1].finish_reason == ("stop" if found else "length")
    if found:
        assert answer.output_tokens == len(before + stop)


@settings(deadline=None)
@given(st.binary(max_size=40), CUTS)
def test_joined_deltas_are_the_full_decode_for_any_bytes(data, cuts):
    """Faults 37, 39 and 40."""
    deltas = deltas_of(new_answer(), [*sampled(data), finished()], cuts)
    assert "".join(delta.text for delta in deltas) == data.decode("utf-8", "replace")


@settings(deadline=None)
@given(st.text(max_size=20), CUTS)
def test_no_replacement_character_appears_unless_the_text_has_one(text, cuts):
    """Fault 39."""
    deltas = deltas_of(new_answer(), [*sampled(text.encode()), finished()], cuts)
    assert [delta.text.count("\ufffd") for delta in deltas if "\ufffd" in delta.text] == [] or "\ufffd" in text


@settings(deadline=None)
@given(CUTS, st.booleans())
def test_exactly_one_delta_is_first_and_exactly_the_last_has_a_reason(cuts, with_stop):
    """Fault 42."""
    deltas = deltas_of(new_answer(stop=["lo"] if with_stop else ()), [*sampled(b"hello there"), finished()], cuts)
    assert [delta.first for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_a_stop_token_ends_the_answer_and_is_not_shown():
    answer = new_answer(stop_tokens=frozenset({EOS, TURN_END, ord("x")}))
    delta = answer.feed([*sampled(b"hix"), finished("stop")])
    assert (delta.text, delta.finish_reason, answer.output_tokens) == ("hi", "stop", 3)


def test_text_that_might_have_become_a_stop_string_is_shown_at_the_end():
    answer = new_answer(stop=["STOP"])
    assert answer.feed(sampled(b"aSTO")).text == "a"
    assert answer.feed([finished()]).text == "STO"


def test_an_abort_by_the_engine_is_an_error_and_never_a_finish_reason():
    with pytest.raises(EngineDied):
        new_answer().feed([finished("abort")])


@settings(deadline=None)
@given(st.text("aé漢😀S", max_size=12), CUTS)
def test_scores_come_with_their_text_and_all_of_them_in_the_end(text, cuts):
    data = text.encode()
    deltas = deltas_of(new_answer(logprobs=2, stop=["SS!"]), [*sampled(data, scored=True), finished()], cuts)
    assert b"".join(score.token for delta in deltas for score in delta.scores) == data
    shown, scored = 0, 0
    for delta in deltas[:-1]:
        shown += len(delta.text.encode())
        scored += sum(len(score.token) for score in delta.scores)
        assert scored == shown


@settings(deadline=None)
@given(st.text("abS", max_size=20), CUTS)
def test_tokens_cut_off_by_a_stop_string_have_no_scores(text, cuts):
    answer = new_answer(logprobs=0, stop=["SaS"])
    deltas = deltas_of(answer, [*sampled(text.encode(), scored=True), finished()], cuts)
    shown = "".join(delta.text for delta in deltas)
    assert "".join(score.token.decode() for delta in deltas for score in delta.scores) == shown


def test_offsets_count_characters():
    answer = new_answer(logprobs=0)
    delta = answer.feed([*sampled("aé漢b".encode(), scored=True), finished()])
    assert [score.offset for score in delta.scores if score.token == b"b"] == [3]
    assert [score.offset for score in delta.scores][:2] == [0, 1]


def test_impossible_tokens_have_a_number_that_json_can_write():
    answer = new_answer(logprobs=1)
    event = Sampled(0.0, "r", 65, TokenLogprobs(float("-inf"), [66], [float("-inf")]))
    [score] = answer.feed([event]).scores
    assert (score.logprob, score.top) == (-9999.0, [(66, b"B", -9999.0)])


def test_token_names_show_text_or_bytes():
    assert token_name("漢".encode()) == "漢"
    assert token_name("漢".encode()[:2]) == r"bytes:\xe6\xbc"


@settings(deadline=None)
@given(st.text("abS", max_size=20), CUTS)
def test_joined_chunks_are_the_whole_choice_in_both_shapes(text, cuts):
    """Faults 35 and 42, in the words of the two endpoints."""
    events = [*sampled(text.encode(), scored=True), finished()]
    deltas = deltas_of(new_answer(logprobs=2, stop=["SaS"]), events, cuts)
    [whole] = deltas_of(new_answer(logprobs=2, stop=["SaS"]), events, [])

    chat = ChatShape(logprobs=True)
    chunks = [chunk for delta in deltas for chunk in chat.chunks(delta)]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == chat.choice(whole)["message"]["content"]
    scored = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
    assert scored == chat.choice(whole)["logprobs"]["content"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]
    assert chunks[-1]["delta"] == {}

    completion = CompletionShape(logprobs=True)
    chunks = [chunk for delta in deltas for chunk in completion.chunks(delta)]
    assert "".join(chunk["text"] for chunk in chunks) == completion.choice(whole)["text"]
    for column, values in completion.choice(whole)["logprobs"].items():
        assert [value for chunk in chunks for value in (chunk["logprobs"] or {column: []})[column]] == values
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]


def test_usage_adds_up_over_choices():
    answers = [new_answer(), new_answer()]
    for answer, text in zip(answers, (b"one", b"three"), strict=True):
        answer.feed([*sampled(text), finished()])
    assert usage(answers, 2) == {
        "prompt_tokens": 6,
        "completion_tokens": 8,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@settings(deadline=None)
@given(st.text("ab", min_size=1, max_size=6), st.text("cd", max_size=6), CUTS, CUTS, st.booleans())
def test_an_echo_comes_whole_and_before_the_text_however_its_scores_arrive(prompt, text, splits, cuts, again):
    tokens = list(prompt.encode())
    echo = Echo(TOKENIZER, tokens, None, prompt_scores=PromptScores(TOKENIZER, tokens, 0), skip_special=True)
    request = Request("r", tokens, SamplingParams(logprobs=0), 100, frozenset({EOS}), prompt_logprobs=0)
    answer = Answer(0, request, TOKENIZER, Detokenizer(TOKENIZER), echo=echo)
    bounds = sorted({1, len(tokens), *(1 + split % len(tokens) for split in splits)})
    parts = [
        PromptScored(0.0, "r", start, [TokenLogprobs(-float(token), [], []) for token in range(start, end)])
        for start, end in pairwise(bounds)
    ]
    parts += parts[:1] if again else []  # as an engine does that was restarted
    deltas = deltas_of(answer, [*parts, *sampled(text.encode(), scored=True), finished()], cuts)
    [at] = [n for n, delta in enumerate(deltas) if delta.echo is not None]
    assert not any(delta.text or delta.scores for delta in deltas[:at])
    assert echo.text == prompt
    assert [score.logprob for score in echo.scores()] == [None, *(-float(n) for n in range(1, len(tokens)))]
    scores = [score for delta in deltas for score in delta.scores]
    assert [score.offset for score in scores] == [len(prompt) + n for n in range(len(text))]
    assert [token for delta in deltas for token in delta.tokens] == list(text.encode())


def test_an_added_space_is_not_echoed():
    """Llama 2's encoding puts a space before a text, and one that the echo shows would not be the client's."""
    pieces = [b"<s>", b" the", b" cat"]
    vocabulary = Vocabulary(pieces, (ControlToken(0, "<s>"),), 0, None, True, frozenset(), strips_first_space=True)
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), vocabulary)
    for text in ("the cat", None):
        prompt_scores = PromptScores(tokenizer, [0, 1, 2], 0)
        echo = Echo(tokenizer, [0, 1, 2], text, prompt_scores=prompt_scores, skip_special=True)
        for start in (1, 2):
            prompt_scores.take(PromptScored(0.0, "r", start, [TokenLogprobs(-1.0, [], [])]))
        assert echo.text == "the cat"
        assert [score.offset for score in echo.scores()] == [0, 0, 3]
