"""Open a model where it lies, whatever its file format."""

from pathlib import Path

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.gguf_model import open_gguf
from lightwell.errors import CheckpointError


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a Hugging Face folder with config.json and safetensors.

    Raises CheckpointError naming the file and what is damaged, missing or not supported in it.
    """
    if path.is_dir():
        from lightwell.checkpoints.huggingface import open_huggingface  # a GGUF file needs nothing of it

        return open_huggingface(path)
    if path.suffix == ".safetensors":
        raise CheckpointError(path, "holds tensors only: give the folder in which config.json stands beside it")
    return open_gguf(path)
