"""Where positions of a sequence lie in a paged cache that is kept as one flat run of slots, BLOCK_TOKENS a block."""

import numpy as np
import numpy.typing as npt

from lightwell.runtimes.base import BLOCK_TOKENS, Int32s


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
