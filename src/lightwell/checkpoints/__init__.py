"""Files on disk to ModelSpec and tensors (GGUF, safetensors), and the catalog of models that can be pulled."""

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.opening import open_checkpoint
from lightwell.checkpoints.spec import ModelSpec
from lightwell.checkpoints.tensor import Format, Tensor

__all__ = ["Checkpoint", "Format", "ModelSpec", "Tensor", "open_checkpoint"]
