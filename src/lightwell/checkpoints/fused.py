"""Tensors that hold several parts of a model one after another, cut into views of their rows; nothing is copied."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from lightwell.checkpoints.spec import ModelSpec
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import CheckpointError


def split_fused(path: Path, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under our names, with those called ``qkv``, ``gate_up`` and ``experts.PART`` cut into their parts.

    Raises CheckpointError for one whose rows are not those of its parts.
    """
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for part, piece in _pieces(path, spec, name, tensor):
            if part in parts:
                raise CheckpointError(path, f"tensors {parts[part].name!r} and {piece.name!r} are the same part")
            parts[part] = piece
    return parts


def _pieces(path: Path, spec: ModelSpec, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    match name.split("."):
        case ["layers", layer, "qkv" | "gate_up" as fused, kind]:
            sizes = _sizes(spec)[fused]
            if tensor.shape[0] != sum(sizes.values()):
                raise CheckpointError(
                    path,
                    f"tensor {tensor.name!r} has {tensor.shape[0]} rows; its parts {', '.join(sizes)} have {sizes}",
                )
            begin = 0
            for part, rows in sizes.items():
                yield f"layers.{layer}.{part}.{kind}", cut(tensor, begin, begin + rows)
                begin += rows
        case ["layers", layer, "experts", part, kind] if tensor.shape[1:]:
            for expert in range(tensor.shape[0]):
                yield f"layers.{layer}.experts.{expert}.{part}.{kind}", squeezed(cut(tensor, expert, expert + 1))
        case _:
            yield name, tensor


def _sizes(spec: ModelSpec) -> dict[str, dict[str, int]]:
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {"qkv": {"q": query, "k": key, "v": key}, "gate_up": {"gate": spec.ffn_width, "up": spec.ffn_width}}


def cut(tensor: Tensor, begin: int, end: int) -> Tensor:
    """Entries [begin, end) of the first axis. The name says which, as every tensor of a model has a name of its own."""
    size = len(tensor.data) // tensor.shape[0]
    data = tensor.data[begin * size : end * size]
    return Tensor(f"{tensor.name}[{begin}:{end}]", tensor.format, (end - begin, *tensor.shape[1:]), data)


def squeezed(tensor: Tensor) -> Tensor:
    """Without its first axis, which has one entry."""
    return Tensor(tensor.name, tensor.format, tensor.shape[1:], tensor.data)
