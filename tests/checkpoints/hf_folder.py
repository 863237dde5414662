"""Hugging Face folders with tiny random models, and safetensors files written byte by byte."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.float32]]

_DTYPES = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16}
_DTYPES["BF16"] = gguf.GGMLQuantizationType.BF16

CONFIG: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


def safetensors_bytes(tensors: Arrays, dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = gguf.quants.quantize(values, _DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return raw_safetensors(json.dumps(header).encode(), data)


def raw_safetensors(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def model_arrays(architecture: str, *, biases: str = "", head: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of the model that CONFIG states, under transformers' names."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (10, 8), "model.norm.weight": (8,)}
    if head:
        shapes["lm_head.weight"] = (10, 8)
    linears = {"self_attn.q": (8, 8), "self_attn.k": (4, 8), "self_attn.v": (4, 8), "self_attn.o": (8, 8)}
    linears |= _feed_forward(architecture)
    if architecture == "phi3":
        linears = {"self_attn.qkv": (16, 8), "self_attn.o": (8, 8), "mlp.gate_up": (32, 8), "mlp.down": (8, 16)}
    norms = {"input_layernorm": 8, "post_attention_layernorm": 8}
    if architecture in ("gemma2", "gemma3"):
        norms |= {"pre_feedforward_layernorm": 8, "post_feedforward_layernorm": 8}
    if architecture in ("gemma3", "qwen3", "qwen3moe"):
        norms |= {"self_attn.q_norm": 4, "self_attn.k_norm": 4}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        shapes |= {f"{prefix}{_stored(name)}.weight": shape for name, shape in linears.items()}
        shapes |= {f"{prefix}{name}_proj.bias": shape[:1] for name, shape in linears.items() if name[-1] in biases}
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def _feed_forward(architecture: str) -> dict[str, tuple[int, ...]]:
    """Mixtral has three experts of width 16, Qwen3-MoE as many of width 6."""
    if architecture not in ("mixtral", "qwen3moe"):
        return {"mlp.gate": (16, 8), "mlp.up": (16, 8), "mlp.down": (8, 16)}
    block, names, width = {
        "mixtral": ("block_sparse_moe", ("w1", "w3", "w2"), 16),
        "qwen3moe": ("mlp", ("gate", "up", "down"), 6),
    }[architecture]
    gate, up, down = names
    linears: dict[str, tuple[int, ...]] = {f"{block}.gate!": (3, 8)}
    for expert in range(3):
        prefix = f"{block}.experts.{expert}."
        linears |= {f"{prefix}{gate}": (width, 8), f"{prefix}{up}": (width, 8), f"{prefix}{down}": (8, width)}
    return linears


def _stored(name: str) -> str:
    """Linear layers are called projections, but for routers (marked here with !) and Mixtral's experts."""
    return name.rstrip("!") if name.endswith(("!", "w1", "w2", "w3")) else f"{name}_proj"


def write_config(folder: Path, model_class: str, **changes: Any) -> None:
    """CONFIG with ``changes``; the change None leaves a field out, ``"null"`` makes it null."""
    fields = {"architectures": [model_class], **CONFIG, **changes}
    kept = {name: None if value == "null" else value for name, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def write_model(folder: Path, model_class: str, arrays: Arrays, dtype: str = "F32", **changes: Any) -> Path:
    write_config(folder, model_class, **changes)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(arrays, dtype))
    return folder
