"""Which tensors a model must have, and of which shape.

The check that a file holds the model that its metadata states.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.spec import ModelSpec
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import CheckpointError

Shape = tuple[int, ...]


def linear_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """(outputs, inputs) of the matrices of one layer."""
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {
        "q": (query, spec.width),
        "k": (key, spec.width),
        "v": (key, spec.width),
        "o": (spec.width, query),
        "gate": (spec.ffn_width, spec.width),
        "up": (spec.ffn_width, spec.width),
        "down": (spec.width, spec.ffn_width),
    }


def norm_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Lengths of the norms of one layer."""
    shapes: dict[str, Shape] = {"attn_norm": (spec.width,), "ffn_norm": (spec.width,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.family == "gemma3":
        shapes |= {"post_attn_norm": (spec.width,), "post_ffn_norm": (spec.width,)}
    return shapes


def expected_shapes(spec: ModelSpec, biases: frozenset[str]) -> Iterator[tuple[str, Shape]]:
    """Every tensor of the model under our names; ``biases`` are the linear layers (q, k...) that add one."""
    yield "embed.weight", (spec.vocab, spec.width)
    yield "final_norm.weight", (spec.width,)
    if not spec.tied_head:
        yield "head.weight", (spec.vocab, spec.width)
    linears = linear_shapes(spec)
    weights = {**linears, **norm_shapes(spec)}
    for layer in range(spec.layers):
        yield from ((f"layers.{layer}.{name}.weight", shape) for name, shape in weights.items())
        yield from ((f"layers.{layer}.{name}.bias", linears[name][:1]) for name in sorted(biases))


def present_biases(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The linear layers for which at least one layer has a bias."""
    parts = (name.split(".") for name in tensors)
    return frozenset(part[2] for part in parts if len(part) == 4 and part[0] == "layers" and part[3] == "bias")


def rename(path: Path, tensors: Mapping[str, Tensor], naming: Callable[[str], str | None]) -> dict[str, Tensor]:
    """The tensors under our names. Raises CheckpointError for a name that ``naming`` does not know, or two for one."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        ours = naming(name)
        if ours is None:
            raise CheckpointError(path, f"tensor {name!r} is not part of any model that is supported here")
        if ours in renamed:
            raise CheckpointError(path, f"tensors {renamed[ours].name!r} and {name!r} are the same part of the model")
        renamed[ours] = tensor
    return renamed


def layer_count(fields: Fields, name: str, tensors: Mapping[str, Tensor]) -> int:
    """How many layers the file states; a number beyond all its tensors is refused before anything is sized by it."""
    layers = fields.count(name)
    if layers > len(tensors):
        raise CheckpointError(fields.path, f"{fields.label(name)} is {layers}, but there are {len(tensors)} tensors")
    return layers


def check_layout(path: Path, spec: ModelSpec, tensors: Mapping[str, Tensor], required_biases: frozenset[str]) -> None:
    """Raise CheckpointError naming the first tensor that is missing, of the wrong shape, or not part of the model.

    A bias that one layer has, all layers must have.
    """
    if spec.heads % spec.kv_heads:
        raise CheckpointError(
            path, f"has {spec.heads} query heads, which is no multiple of its {spec.kv_heads} key heads"
        )
    expected = dict(expected_shapes(spec, required_biases | present_biases(tensors) & frozenset(linear_shapes(spec))))
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(path, f"has no tensor for {name}, which this {spec.architecture} model needs")
        if tensor.shape != shape:
            raise CheckpointError(path, f"tensor {tensor.name!r} has the shape {tensor.shape} instead of {shape}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise CheckpointError(
                path, f"tensor {tensor.name!r} is not part of a {spec.architecture} model as it is supported here"
            )
