import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.sampling.edits import Edits
from lightwell.sampling.params import SamplingParams
from lightwell.sampling.reference import best, candidates, choose, constrained, log_probabilities

Floats = npt.NDArray[np.float32]

# Few distinct scores, so that ties are common.
SCORES = st.lists(st.integers(-8, 8).map(lambda n: n / 2) | st.floats(-30, 30, width=32), min_size=1, max_size=30).map(
    lambda values: np.array(values, np.float32)
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.0625, 2, width=32),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.015625, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**64 - 1),
)
GREEDY = SamplingParams(temperature=0)


def row(*scores: float) -> Floats:
    return np.array(scores, np.float32)


def frequencies(scores: Floats, params: SamplingParams, draws: int = 6000) -> list[int]:
    counts = Counter(choose(scores, params, position) for position in range(draws))
    return [counts[token] for token in range(len(scores))]


def assert_distributed(counts: list[int], probabilities: npt.ArrayLike) -> None:
    """Chi-square at 0.1 %, by the Wilson-Hilferty approximation; impossible tokens must not occur at all."""
    expected = np.asarray(probabilities, np.float64) * sum(counts)
    possible = expected > 0
    assert not np.array(counts)[~possible].any()
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def softmax(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(np.asarray(scores, np.float64))
    weights /= weights.sum()
    return weights


@given(SCORES)
def test_greedy_is_the_lowest_id_among_the_highest(scores: Floats) -> None:
    assert choose(scores, GREEDY, 0) == scores.tolist().index(max(scores))


@given(SCORES, PARAMS, st.integers(0, 2**31 - 1))
def test_top_k_of_one_is_greedy(scores: Floats, params: SamplingParams, position: int) -> None:
    one = SamplingParams(params.temperature, 1, params.top_p, params.min_p, params.seed)
    assert choose(scores, one, position) == choose(scores, GREEDY, 0)


@given(SCORES, PARAMS, st.integers(0, 2**31 - 1))
def test_a_draw_depends_on_nothing_but_its_arguments_and_keeps_to_the_candidates(
    scores: Floats, params: SamplingParams, position: int
) -> None:
    token = choose(scores, params, position)
    assert token == choose(scores.copy(), params, position)
    assert token in candidates(scores.astype(np.float64) / params.temperature, params)


@given(SCORES, PARAMS)
def test_filters_in_their_order(scores: Floats, params: SamplingParams) -> None:
    """The definition once more, with sorted lists."""
    scaled = [float(score) / params.temperature for score in scores]
    left = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    left = left[: params.top_k or len(left)]
    weights = [math.exp(scaled[i] - scaled[left[0]]) for i in left]
    if params.top_p < 1:
        total, reached, count = sum(weights), 0.0, 0
        while count < len(left) and not reached >= params.top_p * total:
            reached, count = reached + weights[count], count + 1
        margin = abs(reached - params.top_p * total), abs(reached - weights[count - 1] - params.top_p * total)
        if min(margin) < 1e-12 * total:
            return  # two ways of adding may disagree at the boundary
        left = left[:count]
    expected = [i for i, w in zip(left, weights, strict=False) if w >= params.min_p]
    if all(abs(w - params.min_p) > 1e-12 for w in weights):
        assert candidates(np.array(scaled), params).tolist() == expected


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(), [2, 0, 1, 3]),
        (SamplingParams(top_k=2), [2, 0]),
        (SamplingParams(top_k=3), [2, 0, 1]),  # 1 and 3 are equal: the lower id stays
        (SamplingParams(top_p=0.5), [2]),
        (SamplingParams(top_p=0.51), [2, 0]),
        (SamplingParams(top_p=0.001), [2]),  # at least one
        (SamplingParams(top_k=2, top_p=0.66), [2]),  # 1/2 of 3/4 is 2/3: renormalised after top-k
        (SamplingParams(min_p=0.5), [2, 0]),
        (SamplingParams(min_p=0.51), [2]),
        (SamplingParams(min_p=1), [2]),
        (SamplingParams(top_k=3, min_p=0.25), [2, 0, 1]),
    ],
)
def test_filters_on_probabilities_of_a_half_a_quarter_and_two_eighths(params: SamplingParams, kept: list[int]) -> None:
    scaled = np.log2([1 / 4, 1 / 8, 1 / 2, 1 / 8]) * math.log(2)
    assert candidates(scaled, params).tolist() == kept


def test_without_filters_draws_are_distributed_as_the_softmax() -> None:
    scores = row(0, 1, 2, -1, 0.5, 2)
    assert_distributed(frequencies(scores, SamplingParams(seed=1)), softmax(scores))


def test_temperature_divides_scores() -> None:
    scores = row(0, 1, 2, -1)
    counts = frequencies(scores, SamplingParams(temperature=0.5, seed=2))
    assert_distributed(counts, softmax([0, 2, 4, -2]))


def test_filtered_draws_are_distributed_as_what_is_left() -> None:
    scores = row(0, 1, 2, -1, 0.5, 2)
    counts = frequencies(scores, SamplingParams(top_k=3, seed=3))
    assert_distributed(counts, softmax([-np.inf, 1, 2, -np.inf, -np.inf, 2]))


def test_draws_at_one_position_are_distributed_over_seeds() -> None:
    scores = row(0, 1, 2, -1)
    counts = Counter(choose(scores, SamplingParams(seed=seed), 7) for seed in range(6000))
    assert_distributed([counts[i] for i in range(4)], softmax(scores))


def test_models_that_share_the_noise_mostly_agree() -> None:
    """Gumbel-max coupling: agreement is far above that of independent draws, and near what overlap allows."""
    rng = np.random.default_rng(0)
    target = rng.standard_normal(50).astype(np.float32) * 2
    draft = target + rng.standard_normal(50).astype(np.float32) * np.float32(0.3)
    n = 1500
    coupled = sum(
        choose(target, SamplingParams(seed=1), i) == choose(draft, SamplingParams(seed=1), i) for i in range(n)
    )
    p, q = softmax(target), softmax(draft)
    overlap = float(np.minimum(p, q).sum())  # what rejection sampling accepts
    assert coupled / n > 0.85 * overlap
    assert coupled / n > 3 * float((p * q).sum())


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=4), SamplingParams(top_p=0.5, min_p=0.1)])
def test_scores_that_are_not_finite(params: SamplingParams) -> None:
    assert {choose(row(NAN, 1, NAN, 1), params, i) for i in range(50)} <= {1, 3}
    assert choose(row(NAN, NAN), params, 0) == 0
    assert choose(row(-INF, -INF), params, 0) == 0
    assert choose(row(0, INF, INF), params, 0) == 1
    assert choose(row(-INF, 0, -INF), params, 0) == 1


def test_a_temperature_below_float32_is_greedy() -> None:
    assert choose(row(1, 1.001, 0), SamplingParams(temperature=1e-60), 3) == 1


def edits(*changes: tuple[int, float, float]) -> Edits:
    tokens, factors, addends = ([change[i] for change in changes] for i in range(3))
    return Edits(np.array(tokens, np.int32), np.array(factors, np.float32), np.array(addends, np.float32))


def test_an_edit_multiplies_away_from_the_top_then_adds() -> None:
    scores = row(2, -2, 0, 7)
    changed = constrained(scores, edits((2, 4, 0.5), (0, 4, 1), (1, 4, -1)))
    assert changed.tolist() == [1.5, -9, 0.5, 7]
    assert scores.tolist() == [2, -2, 0, 7]


def test_an_edit_is_rounded_once_and_knows_no_denormals() -> None:
    tiny = float(np.finfo(np.float32).tiny)
    third = constrained(row(1), edits((0, 3, 1)))
    assert third[0] == np.float32(1 + 1 / 3)
    scores = row(tiny, tiny / 2, -tiny, 1, 3e38, -3e38)
    changes = edits((0, 2, 0), (1, 1e-30, 0), (2, 0.5, 0), (3, 1, tiny / 2), (4, 0.1, 0), (5, 2, 9))
    changed = constrained(scores, changes)
    assert changed.tolist() == [0, 0, 0, 1, INF, -INF]


def test_a_forbidden_token_is_never_drawn() -> None:
    assert choose(constrained(row(5, 1, INF), edits((0, 1, -INF), (2, 1, -INF))), GREEDY, 0) == 1


@given(SCORES, PARAMS, st.data())
def test_a_draw_keeps_to_a_mask_that_allows_anything(
    scores: Floats, params: SamplingParams, data: st.DataObject
) -> None:
    scores[data.draw(st.lists(st.integers(0, len(scores) - 1)))] = data.draw(st.sampled_from([NAN, -INF, INF]))
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    forbidden = data.draw(st.sets(st.integers(0, len(scores) - 1)))
    changed = constrained(scores, edits(*((token, 1, -INF) for token in forbidden)), allowed)
    token = choose(changed, params, 3)
    assert allowed[token] or not allowed.any()
    possible = [t for t in np.flatnonzero(allowed) if t not in forbidden and scores[t] > -INF]
    if possible:
        assert token in possible
    elif allowed.any():
        assert token == np.argmax(allowed)


@given(SCORES)
def test_log_probabilities_are_the_log_softmax(scores: Floats) -> None:
    logs = log_probabilities(scores)
    assert math.isclose(np.exp(logs).sum(), 1, rel_tol=1e-12)
    assert np.allclose(logs - logs[0], scores.astype(np.float64) - scores[0], atol=1e-12)


def test_a_nan_score_is_impossible() -> None:
    assert log_probabilities(row(NAN, 0, 0)).tolist() == pytest.approx([-INF, -math.log(2), -math.log(2)])
    assert best(row(NAN, 0, 1), 3).tolist() == [2, 1, 0]


@given(SCORES, st.integers(0, 40))
def test_best_are_ordered_by_score_then_id(scores: Floats, count: int) -> None:
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
    assert best(scores, count).tolist() == expected
