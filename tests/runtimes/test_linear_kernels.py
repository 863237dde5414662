"""Packing and the linear kernels of each instruction set, against NumPy on weights as the gguf package reads them."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import example, given, settings
from hypothesis import strategies as st

_native = pytest.importorskip("lightwell.runtimes.cpu._native", reason="the native runtime is not built")

ISAS = _native.available_isas()
RUNS = {"32": 1, "64": 2, "128": 4, "ROW": 16}  # groups of a row of 512 columns that share a scale
PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16"}  # format to the form it is packed in
QUANTIZED = {
    "Q4_0": "W4",
    "Q4_1": "W4",
    "Q4_K": "W4",
    "Q5_0": "W8",
    "Q5_1": "W8",
    "Q5_K": "W8",
    "Q8_0": "W8",
    "Q6_K": "W8H",
    "IQ4_NL": "W8",
    "MXFP4": "W8",
    **{f"INT4_{run}": "W4" for run in RUNS},
    **{f"INT8_{run}": "W8" for run in RUNS},
}
FORMS = PLAIN | QUANTIZED
# Where each block of a K format has fp16 numbers that random bytes must not turn into huge or no numbers.
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}
GROUP, TILE = 32, 16


def block_columns(name: str) -> int:
    return GROUP if name.startswith("INT") else gguf.GGML_QUANT_SIZES[Type[name]][0]


def random_source(name: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Tensor data as files have it: one row of bytes a matrix row."""
    if name.startswith("INT"):
        return random_integers(name, rows, columns, rng)
    if name == "MXFP4":
        return random_mxfp4(rows, columns, rng)
    if name not in HALVES:
        return gguf.quantize(rng.normal(size=(rows, columns)).astype(np.float32), Type[name]).view(np.uint8)
    blocks_of_row, block_bytes = columns // block_columns(name), gguf.GGML_QUANT_SIZES[Type[name]][1]
    blocks = rng.integers(0, 256, (rows, blocks_of_row, block_bytes), dtype=np.uint8)
    for offset in HALVES[name]:
        halves = rng.uniform(-0.01, 0.01, (rows, blocks_of_row)).astype(np.float16)
        blocks[:, :, offset : offset + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def random_integers(name: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """INT4 or INT8 blocks; those of a run have the same scale, which needs all of float32's bits, and zero point."""
    block_bytes = {"INT4": 21, "INT8": 36}[name[:4]]
    blocks = rng.integers(0, 256, (rows, columns // GROUP, block_bytes), dtype=np.uint8)
    heads = np.zeros((rows, columns // GROUP, 5), np.uint8)
    heads[:, :, :4] = rng.normal(size=heads.shape[:2]).astype(np.float32)[..., None].view(np.uint8)
    heads[:, :, 4] = rng.integers(0, 17, heads.shape[:2])
    run = blocks.shape[1] if name.endswith("ROW") else RUNS[name[5:]]
    first_of_run = np.arange(blocks.shape[1]) // run * run
    kept = 5 if name.startswith("INT4") else 4
    blocks[:, :, :kept] = heads[:, first_of_run, :kept]
    return blocks.reshape(rows, -1)


def random_mxfp4(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """All exponents that are supported, and blocks of zeros whose exponent says nothing."""
    blocks = rng.integers(0, 256, (rows, columns // GROUP, 17), dtype=np.uint8)
    blocks[:, :, 0] = rng.integers(104, 144, blocks.shape[:2])
    blocks[:, ::5] = rng.integers(0, 256, (rows, len(range(0, columns // GROUP, 5)), 1))
    blocks[:, ::5, 1:] = 0
    return blocks.reshape(rows, -1)


def values_of(name: str, source: np.ndarray, columns: int) -> np.ndarray:
    """The weights, as the gguf package or, for our own formats, their definition has them."""
    if not name.startswith("INT"):
        return gguf.dequantize(source.reshape(-1), Type[name]).reshape(-1, columns).astype(np.float32)
    blocks = source.reshape(len(source), columns // GROUP, -1)
    scales = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32).astype(np.float64)
    if name.startswith("INT8"):
        return (scales * np.ascontiguousarray(blocks[:, :, 4:]).view(np.int8)).reshape(-1, columns)
    values = np.concatenate([blocks[:, :, 5:] & 15, blocks[:, :, 5:] >> 4], axis=-1).astype(np.float64)
    return (scales * (values - blocks[:, :, 4:5])).reshape(-1, columns)


def pack(name: str, source: np.ndarray, columns: int):
    return _native.PackedMatrix(np.ascontiguousarray(source).reshape(-1), name, len(source), columns)


def matrix(name: str, rows: int, columns: int, rng: np.random.Generator):
    """A packed random matrix and its weights as floats."""
    source = random_source(name, rows, columns, rng)
    return pack(name, source, columns), values_of(name, source, columns)


def activations(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of very different sizes, as real activations are."""
    return (rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1)))).astype(np.float32)


def quantized(x: np.ndarray) -> np.ndarray:
    """x as int8 arithmetic sees it: groups of 32 columns rounded to 1/127 of their largest magnitude."""
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    values = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    return (values.astype(np.float64) * scale).reshape(x.shape)


def unpacked(packed, isa: str = "portable") -> np.ndarray:
    return np.stack([_native.matrix_row(packed, row, isa) for row in range(packed.rows)])


def assert_product(got: np.ndarray, x: np.ndarray, weights: np.ndarray) -> None:
    """got is x times the weights but for the rounding of sums, and zero past the last row."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    magnitude = np.abs(x) @ np.abs(weights).T
    assert (np.abs(got[:, : len(weights)] - x @ weights.T) <= 1e-5 * magnitude).all()
    assert not got[:, len(weights) :].any()


@pytest.mark.parametrize("name", FORMS)
def test_layout(name):
    packed, _ = matrix(name, 33, 512, np.random.default_rng(1))
    group_bytes = {"W4": 256 + 64, "W8": 512 + 64, "W8H": 512 + 32, "BF16": 1024, "F16": 1024, "F32": 2048}[FORMS[name]]
    if QUANTIZED.get(name) == "W8" and name not in ("Q5_0", "Q5_1", "Q5_K"):
        group_bytes = 512 + 32  # no minimums
    if name[:3] == "INT":  # zero points in a byte each, and floats for each run, of scales and for zero points
        group_bytes = 256 + 32 + 128 // RUNS[name[5:]] if name[:4] == "INT4" else 512 + 32 + 64 // RUNS[name[5:]]
    if name.endswith("_K"):  # small scales in a byte each, and 16 floats for each fp16 of the block
        group_bytes += {"W4": -32, "W8": -32, "W8H": 0}[FORMS[name]] + len(HALVES[name]) * 64 // 8
    assert (packed.rows, packed.columns, packed.form) == (33, 512, FORMS[name])
    assert packed.nbytes == 3 * (512 // GROUP) * group_bytes


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMS)
def test_rows_read_back(name, isa):
    columns = 45 if name in PLAIN else 512
    packed, weights = matrix(name, 19, columns, np.random.default_rng(2))
    if name.startswith("INT4"):  # a full float32 times a zero point is rounded once
        np.testing.assert_allclose(unpacked(packed, isa), weights, rtol=0, atol=2**-23 * np.abs(weights).max())
    else:
        np.testing.assert_array_equal(unpacked(packed, isa), weights.astype(np.float32))


@pytest.mark.parametrize("name", HALVES)
def test_subnormal_scales_are_exact(name):
    rng = np.random.default_rng(3)
    source = random_source(name, 2, 512, rng)
    blocks = source.reshape(2, 512 // block_columns(name), -1)
    for offset in HALVES[name]:
        blocks[:, :, offset : offset + 2] = np.array([5e-7], np.float16).view(np.uint8)
    weights = gguf.dequantize(source.reshape(-1), Type[name]).reshape(2, 512)
    np.testing.assert_array_equal(unpacked(pack(name, source, 512)), weights)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTIZED)
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 9), m=st.integers(0, 9), seed=st.integers(0, 2**31))
@example(rows=40, blocks=35, m=79, seed=7)  # several strips of AMX, and blocks of rows that are not full
def test_int8_product(name, isa, rows, blocks, m, seed):
    rng = np.random.default_rng(seed)
    columns = block_columns(name) * (blocks if block_columns(name) == GROUP else 1 + blocks % 2)
    packed, weights = matrix(name, rows, columns, rng)
    x = activations(m, columns, rng)
    got = _native.linear_int8(packed, x, isa)
    assert got.shape == (m, -(-rows // TILE) * TILE)
    assert_product(got, quantized(x), weights)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 90), columns=st.integers(1, 100), m=st.integers(0, 14), seed=st.integers(0, 2**31))
def test_float_product(name, isa, rows, columns, m, seed):
    rng = np.random.default_rng(seed)
    columns = -(-columns // block_columns(name)) * block_columns(name)
    packed, weights = matrix(name, rows, columns, rng)
    x = activations(m, columns, rng)
    assert_product(_native.linear_float(packed, x, isa), x, weights)


def set_scales_to_a_quarter(name: str, blocks: np.ndarray) -> None:
    if name.startswith("INT"):
        blocks[:, :, :4] = np.array([0.25], np.float32).view(np.uint8)
        if name.startswith("INT4"):
            blocks[:, :, 4] = 0
    elif name == "MXFP4":
        blocks[:, :, 0] = 125
    else:
        for offset in HALVES.get(name, (0, 2) if name in ("Q4_1", "Q5_1") else (0,)):
            blocks[:, :, offset : offset + 2] = np.array([0.25], np.float16).view(np.uint8)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_extreme_values_do_not_overflow(name, isa):
    """Every product at its largest, where sums in narrow lanes would saturate or wrap."""
    source = np.full_like(random_source(name, 2, 512, np.random.default_rng(4)), 255)
    source[1] = 0
    blocks = source.reshape(2, 512 // block_columns(name), -1)
    set_scales_to_a_quarter(name, blocks)
    if name in ("Q8_0", "INT8_32"):
        values = blocks[:, :, 2 if name == "Q8_0" else 4 :]
        values[0] = 128  # -128
        values[1] = 127
    packed = pack(name, source, 512)
    x = np.stack([np.ones(512), -np.ones(512), np.where(np.arange(512) % 2, 1, -1)] * 11).astype(np.float32)
    assert_product(_native.linear_int8(packed, x, isa), quantized(x), unpacked(packed))


def splits(kernel, packed, x: np.ndarray, isa: str):
    """The same product, one row at a time, a few rows at a time, and one or a few tiles at a time."""
    for rows in (1, 2, 3, 5):
        yield np.concatenate([kernel(packed, x[i : i + rows], isa) for i in range(0, len(x), rows)])
    tiles = -(-packed.rows // TILE)
    for step in (1, 2, 3):
        ranges = [(begin, min(begin + step, tiles)) for begin in range(0, tiles, step)]
        yield np.concatenate([kernel(packed, x, isa, begin, end) for begin, end in ranges], axis=1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=5, deadline=None)
@given(rows=st.integers(1, 90), columns=st.integers(1, 300), m=st.integers(1, 12), seed=st.integers(0, 2**31))
@example(rows=7 * TILE + 3, columns=512, m=23, seed=5)
@example(rows=2 * TILE + 3, columns=1100, m=77, seed=8)
def test_same_bits_however_split(name, isa, rows, columns, m, seed):
    rng = np.random.default_rng(seed)
    columns = -(-columns // block_columns(name)) * block_columns(name)
    packed, _ = matrix(name, rows, columns, rng)
    x = activations(m, columns, rng)
    kernels = [_native.linear_float] if name in PLAIN else [_native.linear_float, _native.linear_int8]
    for kernel in kernels:
        whole = kernel(packed, x, isa)
        for split in splits(kernel, packed, x, isa):
            np.testing.assert_array_equal(split.view(np.uint32), whole.view(np.uint32))


@pytest.mark.skipif("amx" not in ISAS, reason="this CPU has no AMX")
@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("m", [23, 24, 27, 28, 32, 65, 130])
def test_amx_gives_the_bits_of_avx512(name, m):
    """So that a stream may go on, with the same bytes, on a machine without it."""
    rng = np.random.default_rng(m)
    packed, _ = matrix(name, 5 * TILE + 1, 1536, rng)
    x = activations(m, 1536, rng)
    with_tiles, without = (_native.linear_int8(packed, x, isa) for isa in ("amx", "avx512"))
    np.testing.assert_array_equal(with_tiles.view(np.uint32), without.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_zero_rows_stay_zero(isa):
    packed, _ = matrix("Q4_1", 16, 64, np.random.default_rng(6))
    assert not _native.linear_int8(packed, np.zeros((5, 64), np.float32), isa).any()


def test_read_only_data_is_packed():
    data = np.zeros(18 * 16, np.uint8)
    data.flags.writeable = False
    assert _native.PackedMatrix(data, "Q4_0", 16, 32).nbytes == 320


@pytest.mark.parametrize(
    ("size", "name", "rows", "columns", "complaint"),
    [
        (18, "Q3_Z", 1, 32, "unknown tensor format 'Q3_Z'; known are: F32, F16, BF16, Q4_0"),
        (18, "Q4_0", 1, 48, "blocks of 32 columns"),
        (144, "Q4_K", 1, 128, "blocks of 256 columns"),
        (17, "Q4_0", 1, 32, "18 bytes a row, but there are 17"),
        (19, "Q4_0", 1, 32, "18 bytes a row, but there are 19"),
        (37, "Q4_0", 2, 32, "18 bytes a row, but there are 37"),
        (0, "Q4_0", 0, 32, "no elements"),
        (4, "F32", 1, -1, "no elements"),
        (4, "F32", 1, 2**62, "but there are 4"),
    ],
)
def test_bad_matrices_are_refused(size, name, rows, columns, complaint):
    with pytest.raises(ValueError, match=complaint):
        _native.PackedMatrix(np.zeros(size, np.uint8), name, rows, columns)


@pytest.mark.parametrize("exponent", [103, 144])
def test_powers_of_two_beyond_half_precision_are_refused(exponent):
    block = np.full(17, exponent, np.uint8)
    with pytest.raises(ValueError, match=f"exponent {exponent}; those from 104 to 143 are supported"):
        _native.PackedMatrix(block, "MXFP4", 1, 32)


def test_other_arrays_are_not_converted():
    with pytest.raises(TypeError):
        _native.PackedMatrix(np.zeros(18, np.int8), "Q4_0", 1, 32)
    packed, _ = matrix("Q4_0", 16, 64, np.random.default_rng(7))
    with pytest.raises(TypeError):
        _native.linear_int8(packed, np.zeros((1, 64)), "portable")


@pytest.mark.parametrize("isa", ISAS)
def test_bad_calls_are_refused(isa):
    packed, _ = matrix("Q4_0", 16, 64, np.random.default_rng(8))
    plain, _ = matrix("F32", 16, 64, np.random.default_rng(8))
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match="x has 32 columns, the matrix 64"):
        _native.linear_int8(packed, np.zeros((1, 32), np.float32), isa)
    with pytest.raises(ValueError, match="F32 weights take float activations"):
        _native.linear_int8(plain, x, isa)
    with pytest.raises(ValueError, match="not within 1"):
        _native.linear_float(packed, x, isa, 0, 2)
    with pytest.raises(ValueError, match="row 16 is not one of 16"):
        _native.matrix_row(packed, 16, isa)
    with pytest.raises(ValueError, match="'sse9' is not available"):
        _native.linear_float(packed, x, "sse9")
