"""From a checkpoint to its tokenizer, whatever kind of file describes it."""

from pathlib import Path

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.text.gguf_tokenizers import load_gguf_tokenizer
from lightwell.text.hf_tokenizers import load_hf_tokenizer
from lightwell.text.tokenizer import Tokenizer


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint: from its GGUF metadata, or from tokenizer.json beside the weights.

    Raises CheckpointError when there is none, or none of a kind that is read here.
    """
    files = checkpoint.tokenizer
    if (tokenizer_json := files.get("tokenizer.json")) is not None:
        config = files.get("tokenizer_config.json")
        return load_hf_tokenizer(Path(tokenizer_json), config and Path(config), vocab=checkpoint.spec.vocab)
    return load_gguf_tokenizer(checkpoint.path, files, vocab=checkpoint.spec.vocab)
