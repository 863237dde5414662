"""Where positions of a sequence lie in a paged cache that is kept as one flat run of slots, BLOCK_TOKENS a block; and
what may be copied in one. For the runtimes written in NumPy."""

import numpy as np
import numpy.typing as npt

from lightwell.runtimes.base import BLOCK_TOKENS, Int32s, StepInput


def slots(table: Int32s, start: int, end: int, blocks: int) -> npt.NDArray[np.int64]:
    """The slots of positions [start, end) of a sequence with this block table, in a cache of ``blocks`` blocks.

    Raises ValueError where the table does not reach so far, or names a block that is not there.
    """
    positions = np.arange(start, end)
    if end > len(table) * BLOCK_TOKENS:
        raise ValueError(f"a block table of {len(table)} blocks does not reach position {end - 1}")
    held = np.asarray(table, np.int64)[positions // BLOCK_TOKENS]
    if ((held < 0) | (held >= blocks)).any():
        raise ValueError(f"the block table {table.tolist()} lacks a block for positions {start}..{end - 1} of {blocks}")
    return held * BLOCK_TOKENS + positions % BLOCK_TOKENS


def copies_of(step: StepInput, blocks: int, offload_slots: int) -> list[list[int]]:
    """The step's copies as pairs of source and target. Raises ValueError where they are not what StepInput says."""
    if step.copies is None:
        return []
    if step.copies.ndim != 2 or step.copies.shape[1] != 2:
        raise ValueError(f"copies must have shape (any, 2), not {step.copies.shape}")
    pairs: list[list[int]] = step.copies.tolist()
    for source, target in pairs:
        if not 0 <= min(source, target) <= max(source, target) < blocks + offload_slots:
            raise ValueError(f"a copy from {source} to {target} of {blocks} KV blocks and {offload_slots} slots")
        if source == target or min(source, target) >= blocks:
            raise ValueError(f"a copy from {source} to {target}, of which neither or the same is a KV block")
    return pairs
