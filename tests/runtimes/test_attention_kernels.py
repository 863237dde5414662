"""Paged attention and its cache, on every instruction set of this machine: right against NumPy in float64, and for one
row the same bits whatever the rows, heads, blocks and partitions that are computed with it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightwell.runtimes.cpu import _native

pytestmark = pytest.mark.parametrize("isa", _native.available_isas())
each_kv_type = pytest.mark.parametrize("kv_type", ["f16", "int8"])

BLOCK, PARTITION = 32, 256
LARGEST = 65504.0  # the largest finite half


def to_half(x):
    """Nearest even; what is larger than the largest finite half is that, NaN is zero."""
    return np.clip(np.where(np.isnan(x), np.float32(0), x), -LARGEST, LARGEST).astype(np.float16)


def quantized(x, levels):
    """Rows as integers up to ``levels`` times a scale, both as the kernels compute them, in float32."""
    most = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.where(most < 1e-33, np.float32(0), np.float32(levels) / most)
    return np.rint(x * factor), np.where(most < 1e-33, np.float32(0), most / np.float32(levels))


def as_kept(x, kv_type):
    """What a cache of this type gives back for rows of keys or values."""
    if kv_type == "f16":
        return to_half(x)
    integers, scale = quantized(np.clip(np.where(np.isnan(x), np.float32(0), x), -LARGEST, LARGEST), 127)
    return integers.astype(np.float64) * scale


def as_multiplied(q, kv_type):
    integers, scale = (q, np.float32(1)) if kv_type == "f16" else quantized(q, 8191)
    return integers.astype(np.float64) * scale


@dataclass(frozen=True)
class Case:
    """``table`` may list more blocks than the tokens need."""

    q: np.ndarray  # (rows, heads, head_dim)
    keys: np.ndarray  # (tokens, head_dim)
    values: np.ndarray
    first_position: int
    window: int
    scale: float
    table: np.ndarray
    soft_cap: float = 0.0
    sinks: np.ndarray | None = None  # (heads)
    kv_type: str = "f16"

    def run(self, isa, rows_per_item=16, stale=0.0):
        return _native.attention(
            self.q,
            self.keys,
            self.values,
            first_position=self.first_position,
            window=self.window,
            scale=self.scale,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            block_table=self.table,
            rows_per_item=rows_per_item,
            stale=stale,
            kv_type=self.kv_type,
            isa=isa,
        )

    def expected(self):
        keys, values = (as_kept(x, self.kv_type).astype(np.float64) for x in (self.keys, self.values))
        q = as_multiplied(self.q, self.kv_type)
        age = self.first_position + np.arange(len(q))[:, None] - np.arange(len(keys))
        seen = (age >= 0) & (age < (self.window or len(keys)))
        scores = np.einsum("rhd,td->rht", q, keys) * self.scale
        if self.soft_cap:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        scores = np.where(seen[:, None], scores, -np.inf)
        most = scores.max(axis=2, keepdims=True)
        weights = np.exp(scores - most)
        sink = 0 if self.sinks is None else np.exp(self.sinks[:, None] - most)
        return weights @ values / (weights.sum(axis=2, keepdims=True) + sink)


def random_case(
    seed=0,
    head_dim=64,
    heads=3,
    rows=5,
    first_position=300,
    window=0,
    spare_tokens=0,
    spare_blocks=3,
    sharpness=1.0,
    soft_cap=0.0,
    sinks=False,
    kv_type="f16",
):
    rng = np.random.default_rng(seed)
    tokens = first_position + rows + spare_tokens
    q, keys, values = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, heads, head_dim), (tokens, head_dim), (tokens, head_dim))
    )
    table = rng.permutation(-(-tokens // BLOCK) + spare_blocks).astype(np.int32)
    drawn_to = rng.normal(0, 3, heads).astype(np.float32) if sinks else None
    return Case(
        q, keys, values, first_position, window, sharpness / np.sqrt(head_dim), table, soft_cap, drawn_to, kv_type
    )


cases = st.builds(
    random_case,
    seed=st.integers(0, 2**32 - 1),
    head_dim=st.integers(1, 16).map(lambda n: 16 * n),
    heads=st.integers(1, 9),
    rows=st.integers(1, 20),
    first_position=st.one_of(st.integers(0, 70), st.integers(0, 600)),
    window=st.one_of(st.just(0), st.sampled_from([1, 2, 31, 32, 33, 256]), st.integers(1, 700)),
    spare_tokens=st.sampled_from([0, 1, 40]),
    spare_blocks=st.sampled_from([0, 3]),
    sharpness=st.sampled_from([0.0, 1.0, 10.0]),
    soft_cap=st.sampled_from([0.0, 0.0, 1.0, 50.0]),
    sinks=st.booleans(),
    kv_type=st.sampled_from(["f16", "int8"]),
)


def assert_same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@settings(max_examples=40, deadline=None)
@given(case=cases)
@example(case=random_case(heads=9, rows=16))  # more queries than one pass takes
@example(case=random_case(heads=9, rows=16, kv_type="int8"))
@example(case=random_case(heads=3, rows=16, head_dim=512, kv_type="int8"))  # fewer fit where heads are large
@example(case=random_case(first_position=0, rows=1))
@example(case=random_case(first_position=PARTITION - 3, rows=8))  # rows on both sides of a partition's end
@example(case=random_case(first_position=2 * PARTITION - 1, rows=1, spare_blocks=0))  # the last token there is room for
@example(case=random_case(first_position=0, rows=BLOCK, spare_blocks=0, window=BLOCK))
def test_attention_is_softmax_of_what_a_row_sees(isa, case):
    tolerance = 5e-5 if case.kv_type == "f16" else 2e-4  # weights too are integers there, of 16 bits
    np.testing.assert_allclose(case.run(isa), case.expected(), rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(case=cases, rows_per_item=st.integers(1, 15), data=st.data())
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(isa, case, rows_per_item, data):
    whole = case.run(isa)
    assert_same_bits(case.run(isa, rows_per_item), whole)
    row = data.draw(st.integers(0, len(case.q) - 1), "row")
    head = data.draw(st.integers(0, case.q.shape[1] - 1), "head")
    alone = replace(
        case,
        q=case.q[row : row + 1, head : head + 1].copy(),
        first_position=case.first_position + row,
        sinks=None if case.sinks is None else case.sinks[head : head + 1].copy(),
    )
    assert_same_bits(alone.run(isa), whole[row : row + 1, head : head + 1])


@settings(max_examples=25, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32 - 1), stale=st.sampled_from([-1e38, 7.0, np.nan, np.inf]))
def test_neither_places_nor_old_contents_of_blocks_matter(isa, case, seed, stale):
    whole = case.run(isa)
    elsewhere = replace(case, table=np.random.default_rng(seed).permutation(case.table))
    assert_same_bits(elsewhere.run(isa, stale=stale), whole)
    end = case.first_position + len(case.q)
    shorter = replace(case, keys=case.keys[:end].copy(), values=case.values[:end].copy())
    assert_same_bits(shorter.run(isa, stale=stale), whole)


@settings(max_examples=25, deadline=None)
@given(case=cases)
def test_blocks_that_no_row_sees_need_not_exist(isa, case):
    table = case.table.copy()
    if case.window:
        table[: max(0, case.first_position - case.window + 1) // BLOCK] = -1
    table[(case.first_position + len(case.q) - 1) // BLOCK + 1 :] = -1
    assert_same_bits(replace(case, table=table).run(isa), case.run(isa))


@each_kv_type
def test_a_window_of_one_gives_the_value_itself(isa, kv_type):
    case = random_case(window=1, first_position=250, rows=20, kv_type=kv_type)
    want = np.broadcast_to(as_kept(case.values, kv_type)[250:270, None], case.q.shape)
    np.testing.assert_allclose(case.run(isa), want, rtol=0 if kv_type == "f16" else 3e-7)


@each_kv_type
def test_huge_scores_stay_finite(isa, kv_type):
    case = random_case(sharpness=1e6, kv_type=kv_type)
    best = case.expected()  # of such scores the softmax is an argmax
    np.testing.assert_allclose(case.run(isa), best, rtol=1e-5, atol=1e-5)


@each_kv_type
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_harms_no_other(isa, bad, kv_type):
    case = random_case(rows=6, kv_type=kv_type)
    q = case.q.copy()
    q[2, 1, 5] = bad
    got, want = replace(case, q=q).run(isa), case.run(isa)
    others = np.ones(q.shape[:2], bool)
    others[2, 1] = False
    assert_same_bits(got[others], want[others])


@each_kv_type
def test_a_broken_token_in_the_cache_stays_finite(isa, kv_type):
    case = random_case(kv_type=kv_type)
    keys, values = case.keys.copy(), case.values.copy()
    keys[7, 3], values[8, 4], values[9, 5] = np.nan, np.inf, -np.inf
    assert np.isfinite(replace(case, keys=keys, values=values).run(isa)).all()


def stored(key, value, slot, kv_type, isa):
    """(keys, values, scales) of an otherwise zero block with one token in it: bits of halves, or int8 with scales."""
    block, n = _native.store_kv(key, value, slot, kv_type, isa), len(key)
    if kv_type == "f16":
        keys, values = block.view(np.uint16).reshape(2, -1)
        return keys.reshape(n, BLOCK), values.reshape(BLOCK, n), None
    keys, values = block[: 2 * BLOCK * n].view(np.int8).reshape(2, -1)
    keys = keys.reshape(n // 2, BLOCK, 2).swapaxes(1, 2).reshape(n, BLOCK)
    values = values.reshape(BLOCK // 2, n, 2).swapaxes(1, 2).reshape(BLOCK, n)
    return keys, values, block[2 * BLOCK * n :].view(np.float32).reshape(2, BLOCK)


def finite_halves():
    return np.arange(0x7C00, dtype=np.uint16).view(np.float16)


def test_every_half_comes_back_as_it_is(isa):
    """Of a window of one the output is the value itself: subnormals too, though steps count denormal floats as zero."""
    halves = np.concatenate([finite_halves(), -finite_halves()]).astype(np.float32).reshape(-1, 1, 256)
    rows, case = len(halves), random_case(head_dim=256)
    table = np.arange(-(-rows // BLOCK), dtype=np.int32)
    case = replace(case, q=halves, keys=halves[:, 0], values=halves[:, 0], first_position=0, window=1, table=table)
    np.testing.assert_array_equal(case.run(isa), halves)


def test_store_kv_rounds_between_any_two_halves(isa):
    halves = np.append(finite_halves().astype(np.float32), np.float32(65536))
    middles = (halves[:-1] + halves[1:]) / 2
    near = np.stack([np.nextafter(middles, np.float32(0)), middles, np.nextafter(middles, np.float32(np.inf))])
    x = np.concatenate([near.ravel(), -near.ravel()])
    rows = [stored(row, -row, 3, "f16", isa) for row in x.reshape(-1, 2048)]
    keys, values = np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows], axis=1)
    np.testing.assert_array_equal(keys[:, 3], to_half(x).view(np.uint16))
    np.testing.assert_array_equal(values[3], to_half(-x).view(np.uint16))


special = np.array([3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-45, -0.0, 65519.996, 65520, 2.0**-25] * 4, np.float32)


@settings(max_examples=50)
@given(words=st.binary(min_size=128, max_size=128), slot=st.integers(0, BLOCK - 1))
@example(words=special[:32].tobytes(), slot=31)
def test_store_kv_writes_into_its_slot_alone(isa, words, slot):
    key, value = np.split(np.frombuffer(words, np.float32), 2)
    keys, values, _ = stored(key, value, slot, "f16", isa)
    want_keys, want_values = np.zeros((16, BLOCK), np.uint16), np.zeros((BLOCK, 16), np.uint16)
    want_keys[:, slot] = to_half(key).view(np.uint16)
    want_values[slot] = to_half(value).view(np.uint16)
    np.testing.assert_array_equal(keys, want_keys)
    np.testing.assert_array_equal(values, want_values)


@settings(max_examples=50)
@given(words=st.binary(min_size=128, max_size=128), slot=st.integers(0, BLOCK - 1))
@example(words=special[:32].tobytes(), slot=31)
@example(words=bytes(128), slot=0)
def test_store_kv_quantizes_into_its_slot_alone(isa, words, slot):
    key, value = np.split(np.frombuffer(words, np.float32), 2)
    keys, values, scales = stored(key, value, slot, "int8", isa)
    assert np.isfinite(scales).all()
    kept = keys[:, slot].astype(np.float64) * scales[0, slot], values[slot].astype(np.float64) * scales[1, slot]
    for got, row in zip(kept, (key, value), strict=True):
        want = np.clip(np.where(np.isnan(row), 0, row), -LARGEST, LARGEST)
        assert np.abs(got - want).max() <= np.abs(want).max() / 253 + 1e-33
    for whole, own in ((keys, keys[:, slot]), (values, values[slot]), (scales, scales[:, slot])):
        assert np.count_nonzero(whole) == np.count_nonzero(own)


def test_wrong_shapes_are_refused(isa):
    case = random_case()
    with pytest.raises(ValueError, match="multiple of 16"):
        replace(case, q=np.zeros((1, 1, 24), np.float32)).run(isa)
    with pytest.raises(ValueError, match="not empty"):
        replace(case, q=case.q[:0].copy()).run(isa)
    with pytest.raises(ValueError, match="head_dim of q"):
        replace(case, q=np.zeros((1, 1, 32), np.float32)).run(isa)
    with pytest.raises(ValueError, match="must have its token"):
        replace(case, first_position=301).run(isa)
    with pytest.raises(ValueError, match="cover all tokens"):
        replace(case, table=case.table[:5]).run(isa)
    with pytest.raises(ValueError, match="wherever a row"):
        replace(case, table=np.full_like(case.table, -1)).run(isa)
    with pytest.raises(ValueError, match="rows_per_item must be within"):
        case.run(isa, rows_per_item=17)
    with pytest.raises(ValueError, match="there are f16 and int8"):
        replace(case, kv_type="int4").run(isa)
    with pytest.raises(TypeError):
        replace(case, q=case.q.astype(np.float64)).run(isa)
