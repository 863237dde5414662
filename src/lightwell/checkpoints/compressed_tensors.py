"""Layers in the formats "pack-quantized" and "int-quantized" of the compressed-tensors library.

Weights are signed integers of 4 or 8 bits with a scale for the tensor, each row, or each group of columns. Packed ones
(``weight_packed``) have 2^(bits - 1) added and 32 / bits columns in each int32; ``weight_shape`` is the real shape.
"""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.integers import Bytes8, Parts, int4_blocks, int8_blocks, unpack
from lightwell.checkpoints.quantized import Floats
from lightwell.checkpoints.tensor import Format, Tensor

log = logging.getLogger(__name__)

PARTS = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"})
_FORMATS = ("pack-quantized", "int-quantized")
_STRATEGIES = ("tensor", "channel", "group")
_REFUSED = ("kv_cache_scheme", "sparsity_config", "transform_config")  # they change the arithmetic or the storage


def reader(config: Fields) -> Callable[[Parts], Tensor]:
    """How to read a layer. Raises CheckpointError for a scheme that is not known. Activations that the file wants in
    8 bits are left to the runtime, which chooses their precision itself; a line in the log says so."""
    if config.get("format", str) not in _FORMATS:
        raise config.unfit("format", f"{' and '.join(_FORMATS)} are supported")
    for name in _REFUSED:
        if config.raw(name):
            raise config.unfit(name, "this is not supported")
    groups = config.group("config_groups")
    schemes = [groups.group(name) for name in groups.values]
    for scheme in schemes:
        _check_weights(scheme.group("weights"))
    quantizing = [_quantizes_activations(scheme) for scheme in schemes]
    if any(quantizing):
        log.warning("%s: 8-bit activations are asked for; only the weights are read as such here", config.path)
    return _weight


def _check_weights(weights: Fields) -> None:
    if weights.get("type", str, "int") != "int" or weights.count("num_bits") not in (4, 8):
        raise weights.unfit("num_bits", f"4 and 8 bits of type int are supported, not {weights.raw('type')}")
    if weights.get("strategy", str) not in _STRATEGIES:
        raise weights.unfit("strategy", f"supported are {', '.join(_STRATEGIES)}")


def _quantizes_activations(scheme: Fields) -> bool:
    if scheme.raw("output_activations"):
        raise scheme.unfit("output_activations", "this is not supported")
    inputs = scheme.group("input_activations")
    if not inputs.values:
        return False
    if not inputs.get("dynamic", bool, False):
        raise scheme.unfit("input_activations", "activations with fixed scales are not supported, dynamic ones are")
    return True


def _weight(parts: Parts) -> Tensor:
    return _packed(parts) if "weight_packed" in parts.tensors else _plain(parts)


def _packed(parts: Parts) -> Tensor:
    words = parts.integers("weight_packed", Format.I32)
    rows, columns = (int(length) for length in parts.integers("weight_shape", Format.I64, (2,)))
    bits = 32 * words.shape[-1] // max(columns, 1)
    if bits not in (4, 8) or words.shape != (rows, columns * bits // 32):
        raise parts.fault(f"packs {rows} x {columns} weights into words of the shape {words.shape}")
    scales, group_columns = _scales(parts, rows, columns)
    parts.check_order("weight_g_idx", columns, group_columns)
    zeros = _zeros(parts, bits, rows, scales.shape[1])
    if bits == 4:
        return parts.weight(
            4,
            (rows, columns),
            group_columns,
            lambda: int4_blocks(unpack(words, 4).reshape(rows, columns), scales, zeros, group_columns),
        )
    _check_symmetric(parts, zeros == 128)
    return parts.weight(
        8,
        (rows, columns),
        group_columns,
        lambda: int8_blocks((unpack(words, 8).reshape(rows, columns) ^ 128).view(np.int8), scales, group_columns),
    )


def _plain(parts: Parts) -> Tensor:
    values = parts.integers("weight", Format.I8).astype(np.int8, copy=False)
    rows, columns = values.shape
    scales, group_columns = _scales(parts, rows, columns)
    if "weight_zero_point" in parts.tensors:
        _check_symmetric(parts, parts.integers("weight_zero_point", Format.I8) == 0)
    return parts.weight(8, (rows, columns), group_columns, lambda: int8_blocks(values, scales, group_columns))


def _scales(parts: Parts, rows: int, columns: int) -> tuple[Floats, int]:
    """Scales (rows, groups) and the columns of a group."""
    groups = parts.part("weight_scale").shape[-1]
    scales = parts.scales("weight_scale", (rows, groups), (1,), (1, 1))
    if columns % groups:
        raise parts.fault(f"has {groups} groups, which do not divide its {columns} columns")
    return np.broadcast_to(scales.reshape(-1, groups), (rows, groups)), columns // groups


def _zeros(parts: Parts, bits: int, rows: int, groups: int) -> Bytes8:
    """Zero points (rows, groups) with 2^(bits - 1) added, as in the weights: packed along the rows, or a byte each."""
    half = np.uint8(2 ** (bits - 1))
    if "weight_zero_point" not in parts.tensors:
        return np.full((rows, groups), half)
    if parts.part("weight_zero_point").format == Format.I8:
        signed = parts.integers("weight_zero_point", Format.I8, (rows, groups))
        return signed.astype(np.int8).view(np.uint8) + half
    numbers = 32 // bits
    words = parts.integers("weight_zero_point", Format.I32, (-(-rows // numbers), groups))
    return unpack(words, bits).transpose(0, 2, 1).reshape(-1, groups)[:rows]


def _check_symmetric(parts: Parts, holds: npt.NDArray[np.bool_]) -> None:
    if not holds.all():
        raise parts.fault("has 8-bit zero points, which are not supported: use a symmetric version")
