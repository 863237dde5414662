"""Tiny random models in memory, in any family and format, and the shapes that hypothesis may ask of them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.layout import expected_shapes
from lightwell.checkpoints.spec import Family, ModelSpec, Rope
from lightwell.checkpoints.tensor import Format, Tensor

Floats = npt.NDArray[np.float32]

# The gguf package cannot write K formats, so their groups are random bits with scales that suit: for each, the bytes
# where a float16 stands that multiplies quants (d) or minima (dmin), and d and dmin for values of about 1.
_K_SCALES = {
    Format.Q4_K: {0: 1 / 260, 2: 7.5 / 260},
    Format.Q5_K: {0: 1 / 520, 2: 15.5 / 520},
    Format.Q6_K: {208: 1 / 1370},
}


def tiny_checkpoint(
    seed: int = 0,
    *,
    family: Family = "llama",
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    ffn_width: int = 96,
    vocab: int = 100,
    window: int | None = None,
    biases: bool = False,
    qk_norm: bool = False,
    tied: bool = True,
    rope: Rope | None = None,
    format: Format = Format.F32,
) -> Checkpoint:
    """A model of random weights of sensible scale. ``format`` is that of the matrices; norms and biases are F32.

    Gemma 3 always has its q/k norms, and the window on every layer but each second. Quantized formats need columns
    (width, ffn_width and heads * head_dim) that are multiples of the format's group.
    """
    gemma = family == "gemma3"
    spec = ModelSpec(
        name="tiny",
        architecture=family,
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=ffn_width,
        vocab=vocab,
        context_tokens=512,
        norm_eps=1e-5,
        rope=rope or Rope(theta=10_000, dims=head_dim, interleaved=not gemma),
        activation="gelu_tanh" if gemma else "silu",
        tied_head=tied,
        qk_norm=qk_norm or gemma,
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        local_rope=Rope(theta=500, dims=head_dim, interleaved=False) if gemma else None,
        windows=tuple(None if gemma and i % 2 else window for i in range(layers)),
    )
    tensors = dict(random_tensors(spec, np.random.default_rng(seed), format, biases=biases))
    return Checkpoint(path=Path("tiny"), spec=spec, tensors=tensors, tokenizer={}, chat_template=None)


def random_tensors(
    spec: ModelSpec, rng: np.random.Generator, format: Format, *, biases: bool
) -> Iterator[tuple[str, Tensor]]:
    """Scores come out with a deviation of about 3. The last norm has weights of both signs, without which a tied head
    would see each token's own embedding in the stream, and the model would only ever repeat its last token."""
    table_scale = 0.5 / spec.embedding_scale
    for name, shape in expected_shapes(spec, frozenset("qkv") if biases else frozenset()):
        noise = rng.standard_normal(shape, np.float32)
        if name == "final_norm.weight":
            yield name, as_tensor(name, noise * np.float32(3 / (table_scale * math.sqrt(spec.width))), Format.F32)
        elif name.endswith("norm.weight"):
            yield name, as_tensor(name, 1 + noise * np.float32(0.25), Format.F32)
        elif name.endswith("bias"):
            yield name, as_tensor(name, noise * np.float32(0.25), Format.F32)
        else:
            scale = table_scale if name in ("embed.weight", "head.weight") else 1 / math.sqrt(shape[-1])
            yield name, as_tensor(name, noise * np.float32(scale), format)


def as_tensor(name: str, values: Floats, format: Format) -> Tensor:
    """The values in this format, as a file would hold them; in K formats, random bits of the same scale instead."""
    if values.shape[-1] % format.group_values:
        raise ValueError(f"{name}: rows of {values.shape[-1]} values do not divide into groups of {format}")
    if format in _K_SCALES:
        data = _random_groups(values, format)
    else:
        data = gguf.quants.quantize(np.ascontiguousarray(values), gguf.GGMLQuantizationType[format]).view(np.uint8)
    flat = data.reshape(-1)
    flat.flags.writeable = False
    return Tensor(name, format, values.shape, flat)


def _random_groups(values: Floats, format: Format) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(int(values.reshape(-1)[:1].view(np.uint32)[0]))
    groups = rng.integers(0, 256, (values.size // format.group_values, format.group_bytes), np.uint8)
    for at, factor in _K_SCALES[format].items():
        scales = values.std() * factor * rng.uniform(0.8, 1.2, len(groups))
        groups[:, at : at + 2] = scales.astype("<f2")[:, None].view(np.uint8)
    return groups


@st.composite
def tiny_shapes(draw: st.DrawFn, group_values: int = 1) -> dict[str, Any]:
    """Keyword arguments of tiny_checkpoint for a small valid model whose columns divide into groups of this size."""
    kv_heads, head_dim = draw(st.integers(1, 3)), draw(st.sampled_from([16, 32, 48, 64]))
    grouped = [n for n in range(1, 6) if kv_heads * n * head_dim % group_values == 0] or [group_values // 16]
    widths = [n for n in (32, 64, 96, 160, 256) if n % group_values == 0]
    return {
        "family": draw(st.sampled_from(["llama", "gemma3"])),
        "layers": draw(st.integers(1, 3)),
        "width": draw(st.sampled_from(widths)),
        "heads": kv_heads * draw(st.sampled_from(grouped)),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_width": draw(st.sampled_from(widths)),
        "vocab": draw(st.integers(2, 130)),
        "window": draw(st.none() | st.integers(1, 80)),
        "biases": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "tied": draw(st.booleans()),
    }
