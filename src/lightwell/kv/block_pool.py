"""BlockPool: who holds which block of the KV cache, and which free blocks still hold something worth finding.

A block is held by the tables that list it (its reference count) or it is free; nothing else. Free blocks wait in
least-recently-used order, and a full one can be found by its content until it is given out again.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from lightwell.errors import InvariantError
from lightwell.kv.prefix_index import Prefix, PrefixIndex
from lightwell.units import Tokens


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of one sequence, in order. Only ever appended to, so that copies of it elsewhere stay valid.

    The first ``sealed`` blocks are full, computed and findable; ``tip`` is the content of the last of them.
    ``found`` is what could be appended when somebody last looked, so that looking again need not hash again.
    """

    tip: Prefix
    blocks: list[int] = field(default_factory=list)
    sealed: int = 0
    found: list[Prefix] = field(default_factory=list)


class BlockPool:
    """``blocks`` blocks of ``block_tokens`` tokens. ``prefix_cache`` False makes nothing findable."""

    def __init__(
        self,
        blocks: int,
        block_tokens: Tokens = 32,
        *,
        prefix_cache: bool = True,
        model_version: str = "",
        hash_key: bytes | None = None,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._prefix_cache = prefix_cache
        self._index = PrefixIndex(model_version, hash_key)
        self._references = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # the next to be given out first

    @property
    def free_blocks(self) -> int:
        """Blocks that no table lists, whether or not they hold something findable."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be found by their content, held or free."""
        return len(self._index)

    def blocks_for(self, tokens: Tokens) -> int:
        return -(-tokens // self.block_tokens)

    def new_table(self, salt: str = "") -> BlockTable:
        """An empty table. Tables of different salts never share a block."""
        return BlockTable(self._index.root(salt))

    def find(self, table: BlockTable, tokens: list[int]) -> list[Prefix]:
        """The longest run of cached blocks that continues ``table`` for a sequence of ``tokens``.

        At least one token is always left to compute, because without it there are no scores to draw the next from.
        """
        if not self._prefix_cache or table.sealed < len(table.blocks):
            return []
        found = table.found = list(takewhile(_is_held_by_a_block, table.found))
        size, prefix = self.block_tokens, found[-1] if found else table.tip
        for start in range((table.sealed + len(found)) * size, (len(tokens) - 1) // size * size, size):
            match = self._index.find(prefix, tokens[start : start + size])
            if match is None:
                break
            found.append(match)
            prefix = match
        return found

    def free_among(self, found: list[Prefix]) -> int:
        """How many of the found blocks are free now: taking these costs a free block, as a new one would."""
        return sum(not self._references[_block_of(prefix)] for prefix in found)

    def take(self, table: BlockTable, found: list[Prefix]) -> None:
        """Append found blocks to the table that they were found for."""
        for prefix in found:
            block = _block_of(prefix)
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
            table.blocks.append(block)
            table.sealed += 1
            table.tip = prefix
        table.found = []

    def extend(self, table: BlockTable, tokens: Tokens) -> None:
        """Append new blocks until the table has room for ``tokens`` tokens.

        Raises InvariantError when none is free: whoever decides on growth has to look at ``free_blocks`` first.
        """
        while len(table.blocks) * self.block_tokens < tokens:
            if not self._free:
                raise InvariantError(f"no free block among {self.blocks} for a table of {len(table.blocks)}")
            block, _ = self._free.popitem(last=False)
            self._index.forget(block)
            self._references[block] = 1
            table.blocks.append(block)

    def seal(self, table: BlockTable, tokens: list[int], computed: Tokens) -> None:
        """Make the blocks that are full, now that ``computed`` of the sequence's ``tokens`` are, findable."""
        size = self.block_tokens
        while self._prefix_cache and (table.sealed + 1) * size <= computed:
            start = table.sealed * size
            table.tip = self._index.insert(table.tip, tokens[start : start + size], table.blocks[table.sealed])
            table.sealed += 1
            table.found = []

    def release(self, table: BlockTable) -> int:
        """Give all blocks of a table back, the only way that there is; returns how many became free.

        The last block goes first, so that a prefix outlives what hangs on it. Blocks without findable content go to
        the front: nothing is lost when they are given out. Raises InvariantError for a block that nobody holds.
        """
        free_before = len(self._free)
        for block in reversed(table.blocks):
            if not self._references[block]:
                raise InvariantError(f"block {block} was released, but nobody holds it")
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if block not in self._index:
                    self._free.move_to_end(block, last=False)
        table.blocks, table.sealed = [], 0
        return len(self._free) - free_before

    def held_alone(self, table: BlockTable) -> int:
        """How many blocks would become free if this table were released."""
        return sum(self._references[block] == 1 for block in table.blocks)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Compare the books with ``tables``, which must be all that hold blocks. Raises InvariantError on any leak."""
        uses = [0] * self.blocks
        for table in tables:
            for block in table.blocks:
                uses[block] += 1
        faults = [
            f"block {block} counts {references} references, but {used} tables list it"
            for block, (references, used) in enumerate(zip(self._references, uses, strict=True))
            if references != used
        ]
        faults += [f"block {block} is held, but in the free list" for block in self._free if self._references[block]]
        held = self.blocks - self._references.count(0)
        if len(self._free) + held != self.blocks:
            faults.append(f"{len(self._free)} free and {held} held blocks do not add up to {self.blocks}")
        faults += self._index.inconsistencies()
        if faults:
            raise InvariantError("the KV block pool is inconsistent: " + "; ".join(faults[:10]))


def _is_held_by_a_block(prefix: Prefix) -> bool:
    return bool(prefix.blocks)


def _block_of(prefix: Prefix) -> int:
    return next(iter(prefix.blocks))
