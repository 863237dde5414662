"""Tiny random models in memory, in any family and format, and the shapes that hypothesis may ask of them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.layout import LINEARS, expected_shapes
from lightwell.checkpoints.spec import Mixture, ModelSpec, Rope
from lightwell.checkpoints.tensor import Format, Tensor

Floats = npt.NDArray[np.float32]
Kind = Literal["llama", "gemma2", "gemma3", "mixtral", "gpt-oss"]
KINDS: tuple[Kind, ...] = ("llama", "gemma2", "gemma3", "mixtral", "gpt-oss")

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
    family: Kind = "llama",
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
    mixture: Mixture | None = None,
    rope: Rope | None = None,
    format: Format = Format.F32,
) -> Checkpoint:
    """A model of random weights of sensible scale. ``format`` is that of the matrices; norms, biases, routers are F32.

    Gemma has its window on every layer but each second, Gemma 3 always its q/k norms; Mixtral and gpt-oss have four
    experts, two for a token, unless ``mixture`` says otherwise, and gpt-oss all biases. Quantized formats need columns
    (width, ffn_width and heads * head_dim) that are multiples of the format's group.
    """
    gemma, gpt_oss = family in ("gemma2", "gemma3"), family == "gpt-oss"
    if mixture is None and family in ("mixtral", "gpt-oss"):
        mixture = Mixture(experts=4, per_token=2, ffn_width=ffn_width, normalized=True)
    spec = ModelSpec(
        name="tiny",
        architecture=family,
        family="gemma" if gemma else "llama",
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
        activation="gelu_tanh" if gemma else "clamped_swiglu" if gpt_oss else "silu",
        tied_head=tied,
        qk_norm=qk_norm or family == "gemma3",
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        local_rope=Rope(theta=500, dims=head_dim, interleaved=False) if family == "gemma3" else None,
        windows=tuple(None if (gemma or gpt_oss) and i % 2 else window for i in range(layers)),
        post_norms=gemma,
        attention_soft_cap=2.0 if family == "gemma2" else 0.0,
        final_soft_cap=5.0 if family == "gemma2" else 0.0,
        mixture=mixture,
        sinks=gpt_oss,
    )
    biased = LINEARS if gpt_oss else frozenset("qkv" if biases else "")
    tensors = dict(random_tensors(spec, np.random.default_rng(seed), format, biased))
    return Checkpoint(path=Path("tiny"), spec=spec, tensors=tensors, tokenizer={}, chat_template=None)


def random_tensors(
    spec: ModelSpec, rng: np.random.Generator, format: Format, biases: frozenset[str]
) -> Iterator[tuple[str, Tensor]]:
    """Scores come out with a deviation of about 3. The last norm has weights of both signs, without which a tied head
    would see each token's own embedding in the stream, and the model would only ever repeat its last token."""
    table_scale = 0.5 / spec.embedding_scale
    for name, shape in expected_shapes(spec, biases):
        noise = rng.standard_normal(shape, np.float32)
        if name == "final_norm.weight":
            yield name, as_tensor(name, noise * np.float32(3 / (table_scale * math.sqrt(spec.width))), Format.F32)
        elif name.endswith("norm.weight"):
            yield name, as_tensor(name, 1 + noise * np.float32(0.25), Format.F32)
        elif name.endswith("bias"):
            yield name, as_tensor(name, noise * np.float32(0.25), Format.F32)
        elif name.endswith("sinks.weight"):
            yield name, as_tensor(name, noise, Format.F32)
        elif name.endswith("router.weight"):  # far apart, so that rounding never decides which experts are chosen
            yield name, as_tensor(name, noise * np.float32(4 / math.sqrt(shape[-1])), Format.F32)
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


def examples(count: int) -> settings:
    """So many examples with the default profile, and a part of them with one that wants fewer (conftest.py)."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100), deadline=None)


@st.composite
def tiny_shapes(draw: st.DrawFn, group_values: int = 1) -> dict[str, Any]:
    """Keyword arguments of tiny_checkpoint for a small valid model whose columns divide into groups of this size.

    Heads of up to 256 dimensions, all of them rotated or some, and one to nine query heads for a KV head.
    """
    kv_heads, head_dim = draw(st.integers(1, 3)), 16 * draw(st.integers(1, 16))
    columns = {n: kv_heads * n * head_dim for n in range(1, 10)}
    grouped = [n for n, of_heads in columns.items() if of_heads % group_values == 0]
    grouped = [n for n in grouped if columns[n] <= 640] or grouped[:1]
    rotated = st.builds(
        Rope, theta=st.just(10_000), dims=st.integers(1, head_dim // 2).map(lambda n: 2 * n), interleaved=st.booleans()
    )
    widths = [n for n in (32, 64, 96, 160, 256) if n % group_values == 0]
    layers, ffn_widths = draw(st.integers(1, 3)), st.sampled_from(widths)
    experts = draw(st.integers(1, 9))
    mixture = st.builds(
        Mixture,
        experts=st.just(experts),
        per_token=st.integers(1, experts),
        ffn_width=ffn_widths,
        normalized=st.booleans(),
        dense_layers=st.frozensets(st.integers(0, layers - 1)),
    )
    return {
        "family": draw(st.sampled_from(KINDS)),
        "layers": layers,
        "width": draw(st.sampled_from(widths)),
        "heads": kv_heads * draw(st.sampled_from(grouped)),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_width": draw(ffn_widths),
        "mixture": draw(st.none() | mixture),
        "rope": draw(st.none() | rotated),
        "vocab": draw(st.integers(2, 130)),
        "window": draw(st.none() | st.integers(1, 80)),
        "biases": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "tied": draw(st.booleans()),
    }
