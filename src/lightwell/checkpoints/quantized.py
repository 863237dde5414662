"""Stored formats to float32: the exact meaning of every format, in NumPy.

The layouts are ggml's (block_q4_0 ... block_mxfp4 in ggml-common.h), and our own INT4_* and INT8_* (tensor.py). The
runtimes have their own kernels; this is what they are held to. A group of a legacy format is 32 values; a group of a K
format is 256 values in sub-groups.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.tensor import Format, Tensor

Groups = npt.NDArray[np.uint8]  # (groups, group_bytes)
Floats = npt.NDArray[np.float32]


def dequantize(tensor: Tensor) -> Floats:
    """The values of a tensor in its own shape, as a new float32 array."""
    groups = tensor.data.reshape(-1, tensor.format.group_bytes)
    return _DECODERS[tensor.format](groups).reshape(tensor.shape)


def _halves(groups: Groups, at: int) -> Floats:
    """The float16 at byte ``at`` of every group, as a column."""
    return np.ascontiguousarray(groups[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Groups) -> Groups:
    """Low halves of all bytes, then high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _fifth_bits(groups: Groups, at: int) -> Groups:
    """The 32 bits at byte ``at`` of every group as 32 columns, worth 16 each."""
    return np.unpackbits(groups[:, at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _f32(groups: Groups) -> Floats:
    return np.array(groups).view("<f4")


def _f16(groups: Groups) -> Floats:
    return np.array(groups).view("<f2").astype(np.float32)


def _bf16(groups: Groups) -> Floats:
    return (np.array(groups).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(groups: Groups) -> Floats:
    return _halves(groups, 0) * (_nibbles(groups[:, 2:]).astype(np.float32) - 8)


def _q4_1(groups: Groups) -> Floats:
    return _halves(groups, 0) * _nibbles(groups[:, 4:]).astype(np.float32) + _halves(groups, 2)


def _q5_0(groups: Groups) -> Floats:
    quants = _nibbles(groups[:, 6:]) | _fifth_bits(groups, 2)
    return _halves(groups, 0) * (quants.astype(np.float32) - 16)


def _q5_1(groups: Groups) -> Floats:
    quants = _nibbles(groups[:, 8:]) | _fifth_bits(groups, 4)
    return _halves(groups, 0) * quants.astype(np.float32) + _halves(groups, 2)


def _q8_0(groups: Groups) -> Floats:
    return _halves(groups, 0) * np.ascontiguousarray(groups[:, 2:]).view(np.int8).astype(np.float32)


def _k_scales(packed: Groups) -> tuple[Groups, Groups]:
    """Eight 6-bit scales and eight 6-bit minima out of 12 bytes: the first four of each lie whole in the low bits of
    bytes 0-7, the last four as a nibble in bytes 8-11 and two high bits in bytes 0-7."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return scales, minima


def _scaled_with_minima(groups: Groups, quants: Groups) -> Floats:
    """Q4_K and Q5_K: quants (groups, 8, 32) times 6-bit scales, less 6-bit minima, each times a float16."""
    scales, minima = _k_scales(groups[:, 4:16])
    steps = (_halves(groups, 0) * scales.astype(np.float32))[:, :, None]
    offsets = (_halves(groups, 2) * minima.astype(np.float32))[:, :, None]
    return steps * quants.astype(np.float32) - offsets


def _q4_k(groups: Groups) -> Floats:
    return _scaled_with_minima(groups, _nibbles(groups[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(groups: Groups) -> Floats:
    low = _nibbles(groups[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = groups[:, None, 16:48] >> shifts & np.uint8(1)  # those of sub-group i are bit i of 32 bytes
    return _scaled_with_minima(groups, low | fifth << np.uint8(4))


def _q6_k(groups: Groups) -> Floats:
    """Two halves of 128 values, each of 64 bytes with nibbles and 32 bytes with the two high bits of four values."""
    low = _nibbles(groups[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = groups[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    quants = (low | high << 4).astype(np.int8).reshape(-1, 16, 16) - np.int8(32)
    scales = np.ascontiguousarray(groups[:, 192:208]).view(np.int8).astype(np.float32)
    return (_halves(groups, 208) * scales)[:, :, None] * quants.astype(np.float32)


_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _iq4_nl(groups: Groups) -> Floats:
    return _halves(groups, 0) * _IQ4_VALUES[_nibbles(groups[:, 2:])]


def _mxfp4(groups: Groups) -> Floats:
    """E2M1 values under a power of two (OCP Microscaling Formats 1.0)."""
    return np.ldexp(_MXFP4_VALUES[_nibbles(groups[:, 1:])], groups[:, :1].astype(np.int32) - 127)


def _int4(groups: Groups) -> Floats:
    quants = _nibbles(groups[:, 5:]).astype(np.float32) - groups[:, 4:5].astype(np.float32)
    return np.ascontiguousarray(groups[:, :4]).view("<f4") * quants


def _int8(groups: Groups) -> Floats:
    values = np.ascontiguousarray(groups[:, 4:]).view(np.int8).astype(np.float32)
    return np.ascontiguousarray(groups[:, :4]).view("<f4") * values


_DECODERS: dict[Format, Callable[[Groups], Floats]] = {
    Format.F32: _f32,
    Format.F16: _f16,
    Format.BF16: _bf16,
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
    Format.Q5_0: _q5_0,
    Format.Q5_1: _q5_1,
    Format.Q8_0: _q8_0,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
    Format.IQ4_NL: _iq4_nl,
    Format.MXFP4: _mxfp4,
    Format.INT4_32: _int4,
    Format.INT4_64: _int4,
    Format.INT4_128: _int4,
    Format.INT4_ROW: _int4,
    Format.INT8_32: _int8,
    Format.INT8_64: _int8,
    Format.INT8_128: _int8,
    Format.INT8_ROW: _int8,
}
