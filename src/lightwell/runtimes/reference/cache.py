"""The paged KV cache of one layer, in float32: keys and values of every slot, found through block tables."""

import numpy as np

from lightwell.checkpoints.spec import ModelSpec
from lightwell.runtimes.base import BLOCK_TOKENS, Floats, Int32s
from lightwell.runtimes.slots import slots


class LayerCache:
    """Keys and values, each (slots, kv_heads, head_dim)."""

    def __init__(self, spec: ModelSpec, blocks: int) -> None:
        self._blocks = blocks
        self._keys = np.zeros((blocks * BLOCK_TOKENS, spec.kv_heads, spec.head_dim), np.float32)
        self._values = np.zeros_like(self._keys)

    def add_slots(self, slots: int) -> None:
        """Room for more blocks, which are copied to and from only."""
        self._keys, self._values = (
            np.concatenate([x, np.zeros((slots * BLOCK_TOKENS, *x.shape[1:]), np.float32)])
            for x in (self._keys, self._values)
        )

    def copy(self, source: int, target: int) -> None:
        """One block or slot onto another."""
        for x in (self._keys, self._values):
            by_block = x.reshape(-1, BLOCK_TOKENS, *x.shape[1:])
            by_block[target] = by_block[source]

    def write(self, table: Int32s, start: int, keys: Floats, values: Floats) -> None:
        """Put rows (tokens, kv_heads * head_dim) at positions from ``start`` on. ValueError for a bad table."""
        where = slots(table, start, start + len(keys), self._blocks)
        self._keys[where] = keys.reshape(len(keys), *self._keys.shape[1:])
        self._values[where] = values.reshape(len(values), *self._values.shape[1:])

    def read(self, table: Int32s, start: int, end: int) -> tuple[Floats, Floats]:
        """Keys and values of positions [start, end), each (kv_heads, tokens, head_dim). ValueError for a bad table."""
        where = slots(table, start, end, self._blocks)
        return self._keys[where].swapaxes(0, 1), self._values[where].swapaxes(0, 1)
