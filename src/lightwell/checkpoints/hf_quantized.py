"""The quantized layers of a Hugging Face folder: the tensors of each, joined into one weight."""

from collections import defaultdict
from collections.abc import Mapping

from lightwell.checkpoints import awq, compressed_tensors, gptq
from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.integers import Parts
from lightwell.checkpoints.tensor import INTEGERS, Tensor
from lightwell.errors import CheckpointError

_METHODS = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed_tensors}


def join_quantized(config: Fields, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with ``X.weight`` in place of the parts that the method in quantization_config stores of it.

    Nothing large is read yet. Raises CheckpointError naming the field or the layer that is damaged or not supported.
    """
    tensors = dict(stored)
    quantization = config.group("quantization_config")
    if quantization.values:
        method = quantization.get("quant_method", str)
        if method not in _METHODS:
            raise quantization.unfit("quant_method", f"supported are {', '.join(_METHODS)}")
        read = _METHODS[method].reader(quantization)
        for layer, parts in _layers(stored, _METHODS[method].PARTS).items():
            for name in parts:
                del tensors[f"{layer}.{name}"]
            tensors[f"{layer}.weight"] = read(Parts(config.path.parent, layer, parts))
    for name, tensor in tensors.items():
        if tensor.format in INTEGERS:
            raise CheckpointError(
                config.path.parent,
                f"tensor {name!r} is stored as {tensor.format}, and {config.path.name} does not say what it means",
            )
    return tensors


def _layers(stored: Mapping[str, Tensor], names: frozenset[str]) -> dict[str, dict[str, Tensor]]:
    """The parts of each quantized layer, by the layer's name; an integer ``weight`` is one of them."""
    layers: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in stored.items():
        layer, _, part = name.rpartition(".")
        if part in names or (part == "weight" and tensor.format in INTEGERS):
            layers[layer][part] = tensor
    return layers
