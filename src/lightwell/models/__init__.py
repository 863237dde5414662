"""The decoder families, each one function over Ops."""

from collections.abc import Callable
from typing import TypeAlias

from lightwell.checkpoints.spec import Family, ModelSpec
from lightwell.models import gemma, llama
from lightwell.models.ops import Ops, Value
from lightwell.models.weights import Weights

ModelFunction: TypeAlias = Callable[[Ops, ModelSpec, Weights], Value]

_FAMILIES: dict[Family, ModelFunction] = {"llama": llama.forward, "gemma": gemma.forward}


def model_function(spec: ModelSpec) -> ModelFunction:
    """The function that computes this model."""
    return _FAMILIES[spec.family]
