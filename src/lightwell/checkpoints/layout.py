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

LINEARS = frozenset({"q", "k", "v", "o", "gate", "up", "down", "router"})


def linear_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    """(outputs, inputs) of the matrices of a layer."""
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "q": (query, spec.width),
        "k": (key, spec.width),
        "v": (key, spec.width),
        "o": (spec.width, query),
    }
    if (mixture := spec.mixture_of(layer)) is None:
        return shapes | _feed_forward_shapes("", spec.width, spec.ffn_width)
    shapes["router"] = (mixture.experts, spec.width)
    for expert in range(mixture.experts):
        shapes |= _feed_forward_shapes(f"experts.{expert}.", spec.width, mixture.ffn_width)
    return shapes


def _feed_forward_shapes(prefix: str, width: int, ffn_width: int) -> dict[str, Shape]:
    inner, outer = (ffn_width, width), (width, ffn_width)
    return {f"{prefix}gate": inner, f"{prefix}up": inner, f"{prefix}down": outer}


def vector_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Lengths of the norms and sinks of one layer."""
    shapes: dict[str, Shape] = {"attn_norm": (spec.width,), "ffn_norm": (spec.width,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"post_attn_norm": (spec.width,), "post_ffn_norm": (spec.width,)}
    if spec.sinks:
        shapes["sinks"] = (spec.heads,)
    return shapes


def expected_shapes(spec: ModelSpec, biases: frozenset[str]) -> Iterator[tuple[str, Shape]]:
    """Every tensor of the model under our names; ``biases`` are the linear layers (q, k, gate...) that add one."""
    yield "embed.weight", (spec.vocab, spec.width)
    yield "final_norm.weight", (spec.width,)
    if not spec.tied_head:
        yield "head.weight", (spec.vocab, spec.width)
    for layer in range(spec.layers):
        linears = linear_shapes(spec, layer)
        weights = linears | vector_shapes(spec)
        yield from ((f"layers.{layer}.{name}.weight", shape) for name, shape in weights.items())
        biased = (name for name in linears if name.split(".")[-1] in biases)
        yield from ((f"layers.{layer}.{name}.bias", linears[name][:1]) for name in biased)


def present_biases(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The linear layers for which at least one layer has a bias."""
    return frozenset(name.split(".")[-2] for name in tensors if name.startswith("layers.") and name.endswith(".bias"))


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
    if spec.mixture is not None and spec.mixture.experts > len(tensors):  # before anything is sized by it
        raise CheckpointError(path, f"states {spec.mixture.experts} experts, but there are {len(tensors)} tensors")
    expected = dict(expected_shapes(spec, required_biases | present_biases(tensors) & LINEARS))
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
