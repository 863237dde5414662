"""A checkpoint: one model's files, opened. The rest of the house reads models only through this."""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightwell.checkpoints.mapping import MappedFile
from lightwell.checkpoints.spec import ModelSpec
from lightwell.checkpoints.tensor import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """``tensors`` has our own names, the same for every file format:

    ``embed.weight``, ``final_norm.weight``, ``head.weight`` (absent when tied), and for each layer N
    ``layers.N.{attn_norm,ffn_norm,post_attn_norm,post_ffn_norm,q_norm,k_norm}.weight`` and
    ``layers.N.{q,k,v,o,gate,up,down}.{weight,bias}``; a model has only those that its architecture knows.

    ``tokenizer`` is what text/ builds a tokenizer from: GGUF metadata (keys ``tokenizer.ggml.*``), or
    ``{"tokenizer.json": path, "tokenizer_config.json": path}`` for a Hugging Face folder.
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    tokenizer: Mapping[str, Any]
    chat_template: str | None
    maps: tuple[MappedFile, ...] = ()  # the mapped files that the tensors are views of

    def release_pages(self) -> None:
        """Let the system take back the memory of the mapped pages; they are read from disk again when looked at.

        For a runtime that has packed its own copy of the weights and leaves the originals alone from then on.
        """
        for mapped in self.maps:
            mapped.madvise(mmap.MADV_DONTNEED)
