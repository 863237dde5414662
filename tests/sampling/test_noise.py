import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.sampling.noise import gumbel, mix64, random_bits

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**31 - 1)


def test_mix64_is_the_finalizer_of_splitmix64() -> None:
    """The first outputs of the published generator from seed 0, whose state steps by the golden ratio."""
    golden = 0x9E3779B97F4A7C15
    assert [mix64(golden * n) for n in (1, 2, 3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.lists(SEEDS, min_size=1))
def test_mix64_of_an_array_is_that_of_each(values: list[int]) -> None:
    assert mix64(np.array(values, np.uint64)).tolist() == [mix64(value) for value in values]


def bits_by_definition(seed: int, position: int, token: int) -> int:
    """The definition in whole numbers, as the kernel's author has it."""
    key = mix64((seed + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64)
    h = (token * 0x9E3779B9 + key % 2**32) % 2**32
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h ^= key >> 32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


@given(seed=SEEDS, position=POSITIONS, tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_random_bits_follow_the_definition(seed: int, position: int, tokens: list[int]) -> None:
    assert random_bits(seed, position, tokens).tolist() == [bits_by_definition(seed, position, t) for t in tokens]


@given(seed=SEEDS, position=POSITIONS)
def test_no_two_tokens_of_a_draw_share_their_bits(seed: int, position: int) -> None:
    assert len(np.unique(random_bits(seed, position, np.arange(5000)))) == 5000


@pytest.mark.parametrize("along", ["token", "position", "seed"])
def test_gumbel_noise_has_its_distribution_along_every_argument(along: str) -> None:
    n = 8000
    match along:
        case "token":
            noise = gumbel(3, 5, np.arange(n))
        case "position":
            noise = np.concatenate([gumbel(3, position, 17) for position in range(n)])
        case _:
            noise = np.concatenate([gumbel(seed, 5, 17) for seed in range(n)])
    uniform = np.sort(np.exp(-np.exp(-noise)))  # the distribution function of the Gumbel
    distance = np.abs(uniform - (np.arange(n) + 0.5) / n).max()
    assert distance < 1.63 / np.sqrt(n)  # Kolmogorov-Smirnov at 1 %
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 3.3 / np.sqrt(n)


def test_extreme_bits_give_finite_noise() -> None:
    assert np.isfinite(gumbel(0, 0, np.arange(1 << 20))).all()
