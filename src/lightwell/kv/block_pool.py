"""BlockPool: who holds which block of the KV cache, and which free blocks still hold something worth finding.

A block is held by the tables that list it (its reference count) or it is free; nothing else. Free blocks wait in
least-recently-used order, and one with content can be found by it until it is given out again. With an offload store
the content then moves to one of its slots, from where it comes back when it is found.

The pool moves no bytes: it lists copies between blocks (and slots, numbered on from the blocks), which are to be done
in their order and before anything is computed. So a block may be given out again right after a copy from it was
listed: who computes into it comes later, and so does a copy into it.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

from lightwell.errors import InvariantError
from lightwell.kv.prefix_index import LEAST_PART, Prefix, PrefixIndex
from lightwell.kv.slot_store import SlotStore
from lightwell.units import Tokens

Copy: TypeAlias = tuple[int, int]  # from a block or slot to another


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
    """``blocks`` blocks of ``block_tokens`` tokens, and ``offload_slots`` slots for the content of others.

    ``prefix_cache`` False makes nothing findable.
    """

    def __init__(
        self,
        blocks: int,
        block_tokens: Tokens = 32,
        *,
        prefix_cache: bool = True,
        offload_slots: int = 0,
        model_version: str = "",
        hash_key: bytes | None = None,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._prefix_cache = prefix_cache
        self._index = PrefixIndex(model_version, hash_key)
        self._store = SlotStore(blocks, offload_slots)
        self._copies: list[Copy] = []
        self._references = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # the next to be given out first

    @property
    def free_blocks(self) -> int:
        """Blocks that no table lists, whether or not they hold something findable."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be found by their content, held or free."""
        return sum(block < self.blocks for block in self._index.blocks())

    @property
    def offloaded_blocks(self) -> int:
        """Slots of the offload store in use."""
        return len(self._store)

    def drain_copies(self) -> list[Copy]:
        """The copies listed since the last call: for the next step, which does them before it computes."""
        copies, self._copies = self._copies, []
        return copies

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
        """How many of the found blocks are free or offloaded: taking these costs a free block, as a new one would."""
        return sum(not self._is_held(self._best(prefix)) for prefix in found)

    def take(self, table: BlockTable, found: list[Prefix]) -> Tokens:
        """Append found blocks to the table that they were found for; returns the tokens in them.

        Offloaded ones are copied into free blocks, and where there is none the run ends.
        """
        for prefix in reversed(found):  # what hangs on a prefix makes way before it
            self._hold(self._best(prefix))
        offloaded = {best for prefix in found if (best := self._best(prefix)) >= self.blocks}
        taken: list[int] = []
        for prefix in found:
            best = self._best(prefix)
            block = self._restore(prefix, best, offloaded) if best in offloaded else best
            if block is None:
                break
            taken.append(block)
            table.tip = prefix
        for prefix in found[len(taken) :]:
            self._let_go(self._best(prefix))
        table.blocks += taken
        table.sealed += len(taken)
        table.found = []
        return len(taken) * self.block_tokens

    def take_part(self, table: BlockTable, tokens: list[int]) -> Tokens:
        """Append a block whose first tokens are copied from the cached one that shares most of them; returns how many.

        ``tokens`` are all of the sequence's, of which at least one is left to compute. 0 where the table ends within
        a block, no cached block shares enough to be worth it (prefix_index.LEAST_PART), or no block is free.
        """
        start = table.sealed * self.block_tokens
        wanted = tokens[start : min(start + self.block_tokens, len(tokens) - 1)]
        if not self._prefix_cache or table.sealed < len(table.blocks) or not self._free:
            return 0
        match = self._index.find_part(table.tip, wanted)
        if match is None:
            return 0
        source, shared = self._best(match[0]), match[1]
        self._touch(source)  # so that it is given out below only where there is no other
        block = self._give_out(keep={source})
        if block != source:
            self._copies.append((source, block))
        table.blocks.append(block)
        table.found = []
        return shared

    def fork(self, source: BlockTable, target: BlockTable, tokens: Tokens) -> None:
        """Let an empty table have the first ``tokens`` computed tokens of another: full blocks are shared, and the one
        that is not full is copied, as both sequences will write on in it. Independent of the prefix cache.

        Raises InvariantError where the source has not so many, the target is not empty, or no block is free.
        """
        full, rest = divmod(tokens, self.block_tokens)
        if target.blocks or self.blocks_for(tokens) > len(source.blocks):
            raise InvariantError(
                f"a table of {len(source.blocks)} blocks cannot share {tokens} tokens with one of {len(target.blocks)}"
            )
        for block in source.blocks[:full]:
            self._references[block] += 1
            target.blocks.append(block)
        target.tip, target.found = source.tip, []
        target.sealed = min(source.sealed, full)
        for _ in range(source.sealed - target.sealed):
            assert target.tip.parent is not None, "a sealed block has a parent"
            target.tip = target.tip.parent
        if rest:
            target.blocks.append(self._give_out())
            self._copies.append((source.blocks[full], target.blocks[full]))

    def extend(self, table: BlockTable, tokens: Tokens) -> None:
        """Append new blocks until the table has room for ``tokens`` tokens.

        Raises InvariantError when none is free: whoever decides on growth has to look at ``free_blocks`` first.
        """
        while len(table.blocks) * self.block_tokens < tokens:
            table.blocks.append(self._give_out())

    def seal(self, table: BlockTable, tokens: list[int], computed: Tokens) -> None:
        """Make the blocks that are full, now that ``computed`` of the sequence's ``tokens`` are, findable."""
        size = self.block_tokens
        while self._prefix_cache and (table.sealed + 1) * size <= computed:
            start = table.sealed * size
            table.tip = self._index.insert(table.tip, tokens[start : start + size], table.blocks[table.sealed])
            table.sealed += 1
            table.found = []

    def release(self, table: BlockTable, tokens: list[int] | None = None, computed: Tokens = 0) -> int:
        """Give all blocks of a table back, the only way that there is; returns how many became free.

        ``computed`` of its ``tokens``, where given, make its last block findable as far as it is filled: the next
        turn of a conversation goes on in the middle of it.

        The last block goes first, so that a prefix outlives what hangs on it. Blocks without findable content go to
        the front: nothing is lost when they are given out. Raises InvariantError for a block that nobody holds.
        """
        free_before = len(self._free)
        if tokens is not None:
            self._remember_tail(table, tokens[table.sealed * self.block_tokens : computed])
        for block in reversed(table.blocks):
            self._let_go(block)
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
        faults += self._store.inconsistencies({block for block in self._index.blocks() if block >= self.blocks})
        if faults:
            raise InvariantError("the KV block pool is inconsistent: " + "; ".join(faults[:10]))

    def _remember_tail(self, table: BlockTable, tail: list[int]) -> None:
        """Make the block after the sealed ones findable by the tokens in it, unless all of them are elsewhere."""
        if not self._prefix_cache or not LEAST_PART <= len(tail) < self.block_tokens:
            return
        known = self._index.find_part(table.tip, tail)
        if known is None or known[1] < len(tail):
            self._index.insert(table.tip, tail, table.blocks[table.sealed])

    def _best(self, prefix: Prefix) -> int:
        """A block that holds this content; a slot only where no block does."""
        return next((block for block in prefix.blocks if block < self.blocks), next(iter(prefix.blocks)))

    def _is_held(self, block: int) -> bool:
        return block < self.blocks and self._references[block] > 0

    def _touch(self, block: int) -> None:
        """A block or slot is used now, so others make way before it."""
        if block >= self.blocks:
            self._store.touch(block)
        elif not self._references[block]:
            self._free.move_to_end(block)

    def _hold(self, block: int) -> None:
        """One more user, of a block; a slot is touched."""
        if block >= self.blocks:
            self._store.touch(block)
            return
        self._free.pop(block, None)
        self._references[block] += 1

    def _let_go(self, block: int) -> None:
        """One user less, of a block; nothing for a slot."""
        if block >= self.blocks:
            return
        if not self._references[block]:
            raise InvariantError(f"block {block} was released, but nobody holds it")
        self._references[block] -= 1
        if not self._references[block]:
            self._free[block] = None
            if block not in self._index:
                self._free.move_to_end(block, last=False)

    def _give_out(self, keep: Container[int] = ()) -> int:
        """The free block that was not used for longest, for new content, counted once. What it held is offloaded where
        it would be lost, into a slot that is none of ``keep``."""
        if not self._free:
            raise InvariantError(f"no free block among {self.blocks}")
        block, _ = self._free.popitem(last=False)
        if (content := self._index.content(block)) is not None:
            self._offload(content, block, keep)
            self._index.forget(block)
        self._references[block] = 1
        return block

    def _offload(self, content: Prefix, block: int, keep: Container[int]) -> None:
        elsewhere = [other for other in content.blocks if other != block]
        for slot in elsewhere:
            if slot >= self.blocks:
                self._store.touch(slot)
        if elsewhere or (claimed := self._store.claim(keep)) is None:
            return
        self._index.forget(claimed)
        self._index.add(content, claimed)
        self._copies.append((block, claimed))

    def _restore(self, content: Prefix, slot: int, keep: Container[int]) -> int | None:
        """Copy an offloaded content into a free block, counted once; None where there is none."""
        if not self._free:
            return None
        block = self._give_out(keep)
        self._index.add(content, block)
        self._copies.append((slot, block))
        return block


def _is_held_by_a_block(prefix: Prefix) -> bool:
    return bool(prefix.blocks)
