"""The native sampler against sampling/reference.py, token for token, on every instruction set of this machine."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightwell.runtimes.cpu import _native
from lightwell.sampling import reference
from lightwell.sampling.edits import NO_EDITS, Edits
from lightwell.sampling.params import SamplingParams

pytestmark = pytest.mark.parametrize("isa", _native.available_isas())

VOCAB = 49_152


def sample(scores, params, position, isa):
    return _native.sample(
        scores,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        position=position,
        isa=isa,
    )


def normal(seed, n, spread=3.0):
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def coarse(seed, n):
    """Few distinct scores, so many ties, in both zeros; some impossible, some NaN."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal(n) * 2).astype(np.float32)
    scores[rng.random(n) < 0.2] = -np.inf
    scores[rng.random(n) < 0.1] = np.nan
    return scores


score_rows = st.builds(
    lambda make, seed, n: make(seed, n),
    st.sampled_from([normal, coarse]),
    st.integers(0, 2**32 - 1),
    st.one_of(st.integers(1, 70), st.integers(1, 3000)),
)
sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-40, 1e-3, 0.1, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, 2000]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.01, 0.45, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=150, deadline=None)
@given(scores=score_rows, params=sampling_params, position=st.integers(0, 2**31 - 1))
def test_draws_what_the_definition_draws(isa, scores, params, position):
    assert sample(scores, params, position, isa) == reference.choose(scores, params, position)


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.3),
        SamplingParams(top_k=50),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=1.5, top_k=1000, top_p=0.95, min_p=0.001),
        SamplingParams(temperature=20, top_p=0.5),
    ],
)
def test_draws_what_the_definition_draws_from_a_whole_vocabulary(isa, spread, params):
    scores = normal(11, VOCAB, spread)
    for position in range(4):
        assert sample(scores, params, position, isa) == reference.choose(scores, params, position)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**31 - 1))
def test_equal_scores_are_decided_by_the_noise_of_each_token(isa, seed, position):
    params = SamplingParams(seed=seed)
    scores = np.full(1000, 2.5, np.float32)
    assert sample(scores, params, position, isa) == reference.choose(scores, params, position)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("scores", "token"),
    [
        ([np.nan, np.nan], 0),
        ([-np.inf, -np.inf], 0),
        ([np.nan, 1, np.nan], 1),
        ([0, np.inf, 3, np.inf], 1),
        ([-np.inf, 5, -np.inf], 1),
    ],
)
def test_scores_that_leave_no_choice(isa, temperature, scores, token):
    params = SamplingParams(temperature=temperature, top_p=0.9, top_k=2, min_p=0.1)
    assert sample(np.array(scores, np.float32), params, 0, isa) == token


@pytest.mark.parametrize("steps", [-3, -1, 0, 1, 3])
def test_min_p_is_exact_to_the_last_bit_of_a_score(isa, steps):
    params = SamplingParams(min_p=0.3)
    below = np.float32(np.log(np.float64(np.float32(0.3)))) + np.float32(steps * 2.0**-23)
    scores = np.array([0, below], np.float32)
    draws = [sample(scores, params, p, isa) for p in range(50)]
    assert draws == [reference.choose(scores, params, p) for p in range(50)]


@pytest.mark.parametrize("position", range(5))
def test_both_zeros_are_one_score_for_a_filter(isa, position):
    scores = np.array([-1, -0.0, 0.0, -0.0, 0.0], np.float32)
    assert sample(scores, SamplingParams(top_k=1), position, isa) == 1
    assert sample(scores, SamplingParams(top_p=0.01), position, isa) == 1


@pytest.mark.parametrize("position", range(5))
def test_where_a_tiny_temperature_drowns_the_noise_the_lowest_id_wins(isa, position):
    scores = np.array([1, 3, 3, 2, 3], np.float32)
    assert sample(scores, SamplingParams(temperature=1e-30), position, isa) == 1


@pytest.mark.parametrize("n", [1, 3, 4, 15, 16, 17, 64, 1000])
def test_greedy_takes_the_lowest_id_of_the_highest(isa, n):
    greedy = SamplingParams(temperature=0)
    for place in range(0, n, max(1, n // 50)):
        scores = np.zeros(n, np.float32)
        scores[place:] = 1
        assert sample(scores, greedy, 0, isa) == place
        scores[place + 1 :] = -1
        assert sample(scores, greedy, 0, isa) == place


@pytest.mark.parametrize("top_k", [0, 3])
def test_frequencies_follow_the_softmax(isa, top_k):
    scores = np.array([1.0, 0.5, 0.0, -0.5, -1.0, 0.25, 0.75, -2.0], np.float32)
    draws = 20_000
    params = SamplingParams(seed=1234, top_k=top_k)
    counts = np.bincount([sample(scores, params, p, isa) for p in range(draws)], minlength=len(scores))
    kept = np.argsort(-scores)[: top_k or None]
    expected = draws * np.exp(scores[kept]) / np.exp(scores[kept]).sum()
    assert counts[kept].sum() == draws
    assert (((counts[kept] - expected) ** 2) / expected).sum() < 25  # chi-square, 7 degrees: p < 0.001


@settings(max_examples=50, deadline=None)
@given(scores=score_rows, data=st.data())
@example(scores=np.array([1, np.nan, -np.inf, 1], np.float32), data=None)
@example(scores=np.array([1, np.inf, 2], np.float32), data=None)
@example(scores=np.array([np.nan, -np.inf], np.float32), data=None)
def test_logprobs_are_the_log_softmax_and_its_best(isa, scores, data):
    token = data.draw(st.integers(0, len(scores) - 1), "token") if data else 0
    k = data.draw(st.integers(0, min(len(scores), 30)), "k") if data else len(scores)
    chosen, ids, top = _native.logprobs(scores, token, k, isa)
    with np.errstate(invalid="ignore"):
        want = reference.log_probabilities(scores)
    np.testing.assert_allclose(chosen, want[token], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ids, reference.best(scores, k))
    np.testing.assert_allclose(top, want[ids], rtol=1e-6, atol=1e-6)


# Edits and masks


def constrain(scores, edits, allowed, isa):
    bits = None if allowed is None else packed(allowed)
    return _native.constrain(
        scores, tokens=edits.tokens, factors=edits.factors, addends=edits.addends, allowed=bits, isa=isa
    )


def packed(allowed):
    """The mask's bits, with those past the vocabulary set."""
    padded = np.ones(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def extreme(seed, n):
    """Numbers of any size, denormal and infinite ones among them."""
    with np.errstate(over="ignore", under="ignore"):
        return (normal(seed, n) * np.exp(np.random.default_rng(seed + 1).uniform(-110, 95, n))).astype(np.float32)


def random_edits(seed, vocab, size, extremes):
    rng = np.random.default_rng(seed)
    tokens = rng.choice(vocab, min(size, vocab), replace=False).astype(np.int32)
    factors, addends = rng.uniform(0.5, 2, len(tokens)), rng.normal(0, 3, len(tokens))
    if extremes:
        factors, addends = np.exp(rng.uniform(-80, 80, len(tokens))), extreme(seed, len(tokens))
        addends[~(addends < np.inf)] = 0
    addends[rng.random(len(tokens)) < 0.1] = -np.inf
    return Edits(tokens, factors.astype(np.float32), addends.astype(np.float32))


edit_rows = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 5, 3000]), st.booleans())
mask_rows = st.none() | st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.001, 0.5, 0.999, 1.0]))
any_scores = score_rows | st.builds(extreme, st.integers(0, 2**32 - 1), st.integers(1, 300))


def mask_of(drawn, n):
    return None if drawn is None else np.random.default_rng(drawn[0]).random(n) < drawn[1]


@settings(max_examples=200, deadline=None)
@given(scores=any_scores, edits=edit_rows, mask=mask_rows)
def test_edited_and_masked_scores_are_those_of_the_definition_to_the_bit(isa, scores, edits, mask):
    edits, allowed = random_edits(edits[0], len(scores), *edits[1:]), mask_of(mask, len(scores))
    before = scores.copy()
    actual, expected = constrain(scores, edits, allowed, isa), reference.constrained(scores, edits, allowed)
    np.testing.assert_array_equal(scores, before)
    np.testing.assert_array_equal(actual, expected)  # which takes NaN for NaN
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))


@settings(max_examples=100, deadline=None)
@given(scores=score_rows, params=sampling_params, edits=edit_rows, mask=mask_rows)
def test_draws_from_edited_and_masked_scores_what_the_definition_draws(isa, scores, params, edits, mask):
    edits, allowed = random_edits(*edits[:1], len(scores), edits[1], extremes=False), mask_of(mask, len(scores))
    expected = reference.choose(reference.constrained(scores, edits, allowed), params, 7)
    assert sample(constrain(scores, edits, allowed, isa), params, 7, isa) == expected
    assert allowed is None or allowed[expected] or not allowed.any()


@pytest.mark.parametrize("fill", [0.0, -np.inf, np.nan, np.inf])
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100, 1000])
def test_the_one_token_that_a_mask_allows_is_drawn(isa, vocab, fill):
    scores = np.full(vocab, fill, np.float32)
    for token in range(0, vocab, 1 + vocab // 40):
        forbidding = Edits(np.array([token], np.int32), np.ones(1, np.float32), np.full(1, -np.inf, np.float32))
        for edits in (NO_EDITS, forbidding):
            changed = constrain(scores, edits, np.arange(vocab) == token, isa)
            for params in (SamplingParams(temperature=0), SamplingParams(top_p=0.5, min_p=0.1)):
                assert sample(changed, params, 0, isa) == token


def test_of_two_edits_of_a_token_the_last_counts(isa):
    scores = np.array([1, 2], np.float32)
    twice = Edits(np.array([1, 1], np.int32), np.array([1, 1], np.float32), np.array([5, 7], np.float32))
    assert constrain(scores, twice, None, isa).tolist() == reference.constrained(scores, twice).tolist() == [1, 9]


def test_logprobs_of_a_whole_vocabulary(isa):
    scores = normal(3, VOCAB)
    chosen, ids, top = _native.logprobs(scores, 77, 20, isa)
    want = reference.log_probabilities(scores)
    np.testing.assert_array_equal(ids, reference.best(scores, 20))
    np.testing.assert_allclose([chosen, *top], [want[77], *want[ids]], rtol=1e-6)


def test_wrong_arguments_are_refused(isa):
    scores = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="at least one score"):
        sample(scores[:0], SamplingParams(), 0, isa)
    with pytest.raises(TypeError):
        sample(scores.astype(np.float64), SamplingParams(), 0, isa)
    for tokens, allowed in [([4], 4), ([-1], 4), ([0], 33)]:
        edits = Edits(np.array(tokens, np.int32), np.ones(1, np.float32), np.zeros(1, np.float32))
        with pytest.raises(ValueError, match=r"within the scores|for each score"):
            constrain(scores, edits, np.ones(allowed, bool), isa)
    for token, k in [(4, 0), (-1, 0), (0, 5), (0, -1)]:
        with pytest.raises(ValueError, match="within the scores"):
            _native.logprobs(scores, token, k, isa)
