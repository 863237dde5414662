"""GGUF files written byte by byte, so that tests can also write wrong ones."""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightwell.checkpoints.layout import expected_shapes
from lightwell.checkpoints.spec import ModelSpec

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}

Key = tuple[str, int, Any]  # name, value type, value; an array's value is (item type, items)


@dataclass(frozen=True)
class Entry:
    """A tensor as the file lists it: ``dims`` from the fastest on; ``kind`` 0 is F32."""

    name: str
    dims: tuple[int, ...]
    data: bytes
    kind: int = 0
    offset: int | None = None  # None: after the tensor before it, aligned


def f32(name: str, shape: Sequence[int], seed: int = 0) -> Entry:
    """A float32 tensor of random values; ``shape`` is row-major."""
    values = np.random.default_rng(seed).normal(0, 1, shape).astype("<f4")
    return Entry(name, tuple(reversed(shape)), values.tobytes())


def gguf_bytes(keys: Sequence[Key], tensors: Sequence[Entry] = (), *, version: int = 3, alignment: int = 32) -> bytes:
    header = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)))
    for name, kind, value in keys:
        header += _string(name) + struct.pack("<I", kind) + _value(kind, value)
    data = bytearray()
    for tensor in tensors:
        offset = len(data) if tensor.offset is None else tensor.offset
        header += _string(tensor.name) + struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        header += struct.pack("<IQ", tensor.kind, offset)
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    return bytes(header) + bytes(-len(header) % alignment) + bytes(data)


def _string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        item, items = value
        return struct.pack("<IQ", item, len(items)) + b"".join(_value(item, x) for x in items)
    return struct.pack("<" + _PACK[kind], value) if kind in _PACK else bytes(8)


def llama_keys(architecture: str = "llama", **changes: Any) -> list[Key]:
    """The keys of a model of two layers, width 8, 2 heads of 4, one key head, 16 wide inside, 10 tokens.

    ``changes``: key names with ``__`` for dots, and their values; None leaves a key out.
    """
    values: dict[str, Any] = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 8,
        "feed_forward_length": 16,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 10,
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    keys: list[Key] = [("general.architecture", STRING, architecture)]
    keys += [(f"{architecture}.{name}", _kind(value), value) for name, value in values.items() if value is not None]
    return keys


def _kind(value: Any) -> int:
    return {bool: BOOL, int: U32, float: F32, str: STRING, tuple: ARRAY}[type(value)]


_GGUF_NAMES = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "head": "output",
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_attn_norm": "post_attention_norm",
    "post_ffn_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
    "sinks": "attn_sinks",
}


_FUSED_NAMES = {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up", "up": "ffn_up"}  # in phi3


def gguf_name(ours: str, architecture: str) -> str:
    """The tensor that has this part of the model, alone or with others."""
    *layer, part, kind = ours.split(".")
    if architecture == "gpt-oss" and part == "ffn_norm":
        name = "post_attention_norm"
    elif architecture == "phi3":
        name = _FUSED_NAMES.get(part, _GGUF_NAMES[part])
    else:
        name = _GGUF_NAMES[part] + ("_exps" if "experts" in layer else "")
    return ".".join(([f"blk.{layer[1]}"] if layer else []) + [name, kind])


def model_tensors(spec: ModelSpec, biases: Iterable[str] = "") -> list[Entry]:
    """Every tensor that ``spec`` asks for, random, under GGUF's names."""
    parts: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in expected_shapes(spec, frozenset(biases)):
        parts.setdefault(gguf_name(name, spec.architecture), []).append(shape)
    return [f32(name, _joined(name, shapes), seed) for seed, (name, shapes) in enumerate(parts.items())]


def _joined(name: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Experts are stacked along an axis of their own, other parts lie one below the other."""
    if "_exps" in name:
        return (len(shapes), *shapes[0])
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def data_size(tensors: Sequence[Entry]) -> int:
    return sum(math.prod(tensor.dims) * 4 for tensor in tensors)
