"""GPTQ, AWQ and compressed-tensors folders, packed here number by number from their published layouts, read exactly."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from lightwell.checkpoints import Checkpoint, open_checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.errors import CheckpointError
from tests.checkpoints.hf_folder import write_config

WIDTH, FFN, VOCAB = 128, 192, 10
CONFIG = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": 2, "head_dim": 64}
KEY = 64
LINEARS = {
    "self_attn.q": (WIDTH, WIDTH),
    "self_attn.k": (KEY, WIDTH),
    "self_attn.v": (KEY, WIDTH),
    "self_attn.o": (WIDTH, WIDTH),
    "mlp.gate": (FFN, WIDTH),
    "mlp.up": (FFN, WIDTH),
    "mlp.down": (WIDTH, FFN),
}
OURS = {"q": "self_attn.q", "k": "self_attn.k", "v": "self_attn.v", "o": "self_attn.o"}
OURS |= {"gate": "mlp.gate", "up": "mlp.up", "down": "mlp.down"}
Arrays = dict[str, np.ndarray]
Write = Callable[..., tuple[Arrays, np.ndarray]]  # the tensors of a layer, and the weight that they mean


def numbers(rng: np.random.Generator, bits: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**bits, shape)


def packed(values: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """The last axis in int32 words, 32 / bits numbers in each; number order[k] of a word lies k places from its end."""
    count = 32 // bits
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], -values.shape[-1] % count), int)], axis=-1)
    words = np.zeros((*padded.shape[:-1], padded.shape[-1] // count), np.uint64)
    for place, number in enumerate(order or range(count)):
        words |= padded[..., number::count].astype(np.uint64) << np.uint64(place * bits)
    return words.astype(np.uint32).view(np.int32)


def meaning(values: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    """values (rows, columns), zeros and scales (rows, groups)."""
    at = np.arange(values.shape[1]) // group
    return (values - zeros[:, at]).astype(np.float32) * scales.astype(np.float32)[:, at]


def gptq(
    rng: np.random.Generator,
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group: int = 64,
    sym: bool = False,
    v2: bool = False,
) -> tuple[Arrays, np.ndarray]:
    group = columns if group == -1 else group
    groups = -(-columns // group)
    values = numbers(rng, bits, rows, columns)
    zeros = np.full((rows, groups), 2 ** (bits - 1)) if sym else rng.integers(int(v2) ^ 1, 2**bits, (rows, groups))
    scales = rng.normal(0.01, 0.002, (rows, groups)).astype(np.float16)
    parts = {
        "qweight": packed(values, bits).T,
        "qzeros": packed(zeros.T - (0 if v2 else 1), bits),
        "scales": scales.T,
        "g_idx": (np.arange(columns) // group).astype(np.int32),
    }
    return parts, meaning(values, zeros, scales, group)


def awq(rng: np.random.Generator, rows: int, columns: int, *, group: int = 64) -> tuple[Arrays, np.ndarray]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    group = columns if group == -1 else group
    groups = -(-columns // group)
    values, zeros = numbers(rng, 4, rows, columns), numbers(rng, 4, rows, groups)
    scales = rng.normal(0.01, 0.002, (rows, groups)).astype(np.float16)
    parts = {"qweight": packed(values.T, 4, order), "qzeros": packed(zeros.T, 4, order), "scales": scales.T}
    return parts, meaning(values, zeros, scales, group)


def pack_quantized(
    rng: np.random.Generator, rows: int, columns: int, *, bits: int = 4, group: int = 64, zero_points: str = ""
) -> tuple[Arrays, np.ndarray]:
    group = columns if group == -1 else group
    groups = columns // group
    values, zeros = numbers(rng, bits, rows, columns), np.full((rows, groups), 2 ** (bits - 1))
    scales = rng.normal(0.01, 0.002, (rows, groups)).astype(np.float32)
    parts = {
        "weight_packed": packed(values, bits),
        "weight_scale": scales,
        "weight_shape": np.array([rows, columns], np.int64),
    }
    if zero_points:
        zeros = numbers(rng, bits, rows, groups)
        signed = (zeros - 2 ** (bits - 1)).astype(np.int8)
        parts["weight_zero_point"] = signed if zero_points == "bytes" else packed(zeros.T, bits).T
    return parts, meaning(values, zeros, scales, group)


def int_quantized(
    rng: np.random.Generator, rows: int, columns: int, *, tensor_scale: bool = False
) -> tuple[Arrays, np.ndarray]:
    values = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    scales = rng.normal(0.01, 0.002, (1,) if tensor_scale else (rows, 1)).astype(np.float32)
    return {"weight": values, "weight_scale": scales}, values.astype(np.float32) * scales


def compressed(bits: int = 4, form: str = "pack-quantized", strategy: str = "group", **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, **changes.pop("scheme", {})}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
        **changes,
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
CASES: dict[str, tuple[dict[str, Any], Write, dict[str, Any]]] = {
    "gptq": (GPTQ, gptq, {}),
    "gptq v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq, {"v2": True}),
    "gptq groups of 32": ({**GPTQ, "group_size": 32}, gptq, {"group": 32}),
    "gptq groups of 128": ({**GPTQ, "group_size": 128}, gptq, {"group": 128}),  # the last of 192 columns is short
    "gptq groups of 96": ({**GPTQ, "group_size": 96}, gptq, {"group": 96}),
    "gptq whole rows": ({**GPTQ, "group_size": -1}, gptq, {"group": -1}),
    "gptq symmetric": ({**GPTQ, "sym": True}, gptq, {"sym": True}),
    "gptq 8 bits": ({**GPTQ, "bits": 8}, gptq, {"bits": 8, "sym": True}),
    "gptq 8 bits whole rows": ({**GPTQ, "bits": 8, "group_size": -1}, gptq, {"bits": 8, "sym": True, "group": -1}),
    "awq": (AWQ, awq, {}),
    "awq groups of 32": ({**AWQ, "group_size": 32, "version": "GEMM"}, awq, {"group": 32}),
    "awq whole rows": ({**AWQ, "group_size": -1}, awq, {"group": -1}),
    "packed int4": (compressed(), pack_quantized, {}),
    "packed int4 by channel": (compressed(strategy="channel"), pack_quantized, {"group": -1}),
    "packed int4 with zero points": (compressed(), pack_quantized, {"zero_points": "packed"}),
    "packed int4 with zero points in bytes": (compressed(), pack_quantized, {"zero_points": "bytes"}),
    "packed int8": (compressed(8), pack_quantized, {"bits": 8, "group": 32}),
    "int8 by channel": (compressed(8, "int-quantized", "channel"), int_quantized, {}),
    "int8 by tensor": (compressed(8, "int-quantized", "tensor"), int_quantized, {"tensor_scale": True}),
}


def write_folder(
    folder: Path,
    quantization: dict[str, Any] | None,
    write: Write,
    change: Callable[[str, Arrays], None] | None = None,
    **options: Any,
) -> Arrays:
    """A folder with one quantized layer; returns the weight that each linear layer means. ``change`` alters parts."""
    rng = np.random.default_rng(9)
    arrays: Arrays = {"model.embed_tokens.weight": rng.normal(0, 1, (VOCAB, WIDTH)).astype(np.float16)}
    arrays |= {f"model.{name}.weight": np.ones(WIDTH, np.float16) for name in ("norm", "layers.0.input_layernorm")}
    arrays["model.layers.0.post_attention_layernorm.weight"] = np.ones(WIDTH, np.float16)
    weights = {}
    for name, (rows, columns) in LINEARS.items():
        parts, weights[name] = write(rng, rows, columns, **options)
        if change:
            change(name, parts)
        layer = f"model.layers.0.{name}_proj"
        arrays |= {f"{layer}.{part}": np.ascontiguousarray(values) for part, values in parts.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    write_config(folder, "LlamaForCausalLM", **CONFIG, num_hidden_layers=1, quantization_config=quantization)
    return weights


def assert_means(checkpoint: Checkpoint, weights: Arrays) -> None:
    for ours, theirs in OURS.items():
        values = dequantize(checkpoint.tensors[f"layers.0.{ours}.weight"])
        np.testing.assert_array_equal(values, weights[theirs])


@pytest.mark.parametrize("case", CASES)
def test_weights_are_exactly_what_the_file_means(tmp_path: Path, case: str) -> None:
    quantization, write, options = CASES[case]
    weights = write_folder(tmp_path, quantization, write, **options)
    assert_means(open_checkpoint(tmp_path), weights)


@pytest.mark.parametrize("case", CASES)
def test_packed_weights_are_the_same(tmp_path: Path, case: str) -> None:
    native = pytest.importorskip("lightwell.runtimes.cpu._native", reason="the native runtime is not built")
    quantization, write, options = CASES[case]
    write_folder(tmp_path, quantization, write, **options)
    tensor = open_checkpoint(tmp_path).tensors["layers.0.down.weight"]
    matrix = native.PackedMatrix(tensor.data, tensor.format, tensor.rows, tensor.columns)
    rows = np.stack([native.matrix_row(matrix, row, "portable") for row in range(tensor.rows)])
    np.testing.assert_allclose(rows, dequantize(tensor), rtol=0, atol=1e-7)  # one rounding where scales are float32


def test_sizes_are_known_before_weights_are_read(tmp_path: Path) -> None:
    write_folder(tmp_path, GPTQ, gptq)
    tensors = open_checkpoint(tmp_path).tensors.values()
    assert all(tensor.nbytes == tensor.data.nbytes for tensor in tensors)


def test_dynamic_activations_are_left_to_the_runtime(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scheme = {"input_activations": {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}}
    weights = write_folder(tmp_path, compressed(8, "int-quantized", "channel", scheme=scheme), int_quantized)
    with caplog.at_level(logging.WARNING):
        assert_means(open_checkpoint(tmp_path), weights)
    assert "only the weights are read as such" in caplog.text


def out_of_order(name: str, parts: Arrays) -> None:
    for part in ("g_idx", "weight_g_idx"):
        if part in parts:
            parts[part] = parts[part][::-1]


def lacking(part: str) -> Callable[[str, Arrays], None]:
    def change(name: str, parts: Arrays) -> None:
        del parts[part]

    return change


def reshaped(part: str) -> Callable[[str, Arrays], None]:
    def change(name: str, parts: Arrays) -> None:
        parts[part] = parts[part][:-1]

    return change


def as_floats(part: str) -> Callable[[str, Arrays], None]:
    def change(name: str, parts: Arrays) -> None:
        parts[part] = parts[part].astype(np.float32)

    return change


STATIC = {"input_activations": {"num_bits": 8, "type": "int", "dynamic": False}}
FAULTS: list[tuple[dict[str, Any] | None, Write, dict[str, Any], Callable[[str, Arrays], None] | None, str]] = [
    ({**GPTQ, "quant_method": "hqq"}, gptq, {}, None, "quant_method' is 'hqq': supported are gptq, awq"),
    ({**GPTQ, "bits": 3}, gptq, {}, None, "quantization_config.bits' is '3': 4 or 8"),
    ({**GPTQ, "checkpoint_format": "marlin"}, gptq, {}, None, "gptq and gptq_v2 are supported"),
    ({**GPTQ, "group_size": 0}, gptq, {}, None, "or -1 for whole rows"),
    ({**GPTQ, "group_size": 16}, gptq, {"group": 16}, None, "in groups of 16: both must be multiples of 32"),
    (GPTQ, gptq, {}, out_of_order, "'model.layers.0.mlp.down_proj' has its columns in groups out of order ('g_idx'"),
    (GPTQ, gptq, {}, lacking("scales"), "'model.layers.0.mlp.down_proj' has no tensor 'scales'"),
    (GPTQ, gptq, {}, reshaped("scales"), "has 'scales' of the shape (2, 128) instead of (3, 128)"),
    (GPTQ, gptq, {}, as_floats("qweight"), "stores 'qweight' as F32"),
    ({**GPTQ, "bits": 8}, gptq, {"bits": 8}, None, "8-bit zero points other than 128"),
    ({**AWQ, "version": "gemv"}, awq, {}, None, "gemm is supported"),
    (AWQ, awq, {}, reshaped("qzeros"), "has 'qzeros' of the shape"),
    (compressed(form="float-quantized"), pack_quantized, {}, None, "pack-quantized and int-quantized are supported"),
    (compressed(strategy="block"), pack_quantized, {}, None, "supported are tensor, channel, group"),
    (compressed(2), pack_quantized, {}, None, "4 and 8 bits of type int are supported"),
    (compressed(scheme=STATIC), pack_quantized, {}, None, "activations with fixed scales are not supported"),
    (compressed(transform_config={"r1": {}}), pack_quantized, {}, None, "'quantization_config.transform_config' is"),
    (compressed(8), pack_quantized, {"bits": 8, "zero_points": "packed"}, None, "has 8-bit zero points"),
    (compressed(), pack_quantized, {}, reshaped("weight_packed"), "packs 128 x 192 weights into words of the shape"),
    (None, gptq, {}, None, "is stored as I32, and config.json does not say what it means"),
]


@pytest.mark.parametrize(("quantization", "write", "options", "change", "message"), FAULTS)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path,
    quantization: dict[str, Any] | None,
    write: Write,
    options: dict[str, Any],
    change: Callable[[str, Arrays], None] | None,
    message: str,
) -> None:
    write_folder(tmp_path, quantization, write, change, **options)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert message in caught.value.message
