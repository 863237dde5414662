"""Blocks are free or held exactly once, full ones stay findable until reused, and nothing leaks whatever happens."""

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lightwell.errors import InvariantError
from lightwell.kv.block_pool import BlockPool, BlockTable
from lightwell.kv.prefix_index import PrefixIndex
from lightwell.runtimes.base import BLOCK_TOKENS

SIZE = 4


def computed_table(pool: BlockPool, tokens: list[int], salt: str = "") -> BlockTable:
    """A table as a sequence leaves it that computed all of its tokens."""
    table = pool.new_table(salt)
    pool.take(table, pool.find(table, tokens))
    pool.extend(table, len(tokens))
    pool.seal(table, tokens, len(tokens))
    return table


def hits(pool: BlockPool, tokens: list[int], salt: str = "") -> int:
    return len(pool.find(pool.new_table(salt), tokens))


def test_the_default_block_is_the_runtimes_block():
    assert BlockPool(1).block_tokens == BLOCK_TOKENS


def test_a_table_grows_by_whole_blocks_and_gives_them_all_back():
    pool = BlockPool(5, SIZE)
    table = pool.new_table()
    for tokens, blocks in [(1, 1), (4, 1), (5, 2), (17, 5)]:
        pool.extend(table, tokens)
        assert len(table.blocks) == blocks == pool.blocks_for(tokens)
        assert pool.free_blocks == 5 - blocks
        pool.check([table])
    assert pool.release(table) == 5
    pool.check([])


def test_taking_more_than_there_is_says_so():
    pool = BlockPool(2, SIZE)
    with pytest.raises(InvariantError, match="no free block among 2"):
        pool.extend(pool.new_table(), 9)


def test_releasing_a_block_twice_is_an_error():
    # public report: sglang#18701, blocks freed twice after an abort
    pool = BlockPool(2, SIZE)
    table = pool.new_table()
    pool.extend(table, 4)
    other = copy.copy(table)
    pool.release(table)
    assert pool.release(table) == 0, "a released table is empty"
    with pytest.raises(InvariantError, match="nobody holds it"):
        pool.release(other)


@pytest.mark.parametrize("length", range(1, 3 * SIZE + 2))
def test_the_longest_cached_prefix_is_found_but_one_token_is_left_to_compute(length: int):
    pool = BlockPool(20, SIZE)
    tokens = list(range(length))
    pool.release(computed_table(pool, tokens))
    assert hits(pool, tokens) == (length - 1) // SIZE
    assert hits(pool, [*tokens, 99]) == length // SIZE
    assert hits(pool, [99, *tokens]) == 0


def test_a_table_takes_what_was_found_for_it_and_shares_it():
    pool = BlockPool(10, SIZE)
    tokens = list(range(12))
    first = computed_table(pool, tokens)
    second = computed_table(pool, tokens)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert pool.held_alone(first) == 1
    assert pool.release(first) == 1
    assert pool.release(second) == 3
    pool.check([])


def test_a_table_in_the_middle_of_a_block_finds_nothing():
    pool = BlockPool(10, SIZE)
    tokens = list(range(12))
    pool.release(computed_table(pool, tokens))
    table = pool.new_table()
    pool.extend(table, 2)
    assert pool.find(table, tokens) == []


def test_a_full_block_is_found_after_its_last_user_left_until_it_is_reused():
    pool = BlockPool(3, SIZE)
    tokens = list(range(12))
    pool.release(computed_table(pool, tokens))
    assert pool.free_blocks == 3
    assert pool.cached_blocks == 3
    assert hits(pool, [*tokens, 0]) == 3
    pool.extend(pool.new_table(), 3 * SIZE)
    assert hits(pool, tokens) == 0
    assert pool.cached_blocks == 0


def test_blocks_are_reused_least_recently_used_first_and_the_tail_before_its_prefix():
    pool = BlockPool(4, SIZE)
    old, new = list(range(8)), list(range(100, 108))
    pool.release(computed_table(pool, old))
    pool.release(computed_table(pool, new))
    pool.release(computed_table(pool, [*old, 9][:8]))  # old is used again, both of its blocks
    taken = pool.new_table()
    pool.extend(taken, SIZE)
    assert (hits(pool, [*old, 0]), hits(pool, [*new, 0])) == (2, 1)
    pool.extend(taken, 2 * SIZE)
    assert (hits(pool, [*old, 0]), hits(pool, [*new, 0])) == (2, 0)
    pool.extend(taken, 3 * SIZE)
    assert hits(pool, [*old, 0]) == 1


def test_blocks_without_findable_content_are_reused_first():
    pool = BlockPool(3, SIZE)
    cached, half_full = list(range(8)), [50, 51]
    tables = [computed_table(pool, cached), computed_table(pool, half_full)]
    for table in tables:
        pool.release(table)
    pool.extend(pool.new_table(), SIZE)
    assert hits(pool, [*cached, 0]) == 2


def test_what_was_found_before_a_table_grew_is_not_offered_after_it():
    pool = BlockPool(10, SIZE)
    tokens = list(range(13))
    pool.release(computed_table(pool, tokens))
    table = pool.new_table()
    assert len(pool.find(table, tokens)) == 3
    pool.extend(table, SIZE)
    pool.seal(table, tokens, SIZE)
    found = pool.find(table, tokens)
    assert [prefix.parent is table.tip for prefix in found] == [True, False]


def test_tables_of_different_salts_never_share_a_block():
    # public report: vllm PR#17045 (CVE-2025-46570), response times told what others had asked
    pool = BlockPool(20, SIZE)
    tokens = list(range(13))
    mine = computed_table(pool, tokens, salt="mine")
    assert hits(pool, tokens, salt="mine") == 3
    assert hits(pool, tokens, salt="yours") == hits(pool, tokens, salt="") == 0
    assert not set(mine.blocks) & set(computed_table(pool, tokens, salt="yours").blocks)


def test_without_prefix_cache_nothing_is_ever_found():
    pool = BlockPool(20, SIZE, prefix_cache=False)
    tokens = list(range(13))
    pool.release(computed_table(pool, tokens))
    assert hits(pool, tokens) == 0
    assert pool.cached_blocks == 0


def test_taking_free_blocks_costs_and_taking_held_ones_does_not():
    pool = BlockPool(10, SIZE)
    tokens = list(range(13))
    table = computed_table(pool, tokens)
    found = pool.find(pool.new_table(), tokens)
    assert pool.free_among(found) == 0
    pool.release(table)
    assert pool.free_among(found) == 3


def test_check_tells_of_leaks_and_of_tables_that_hold_what_they_do_not_own():
    pool = BlockPool(4, SIZE)
    table = pool.new_table()
    pool.extend(table, 8)
    with pytest.raises(InvariantError, match="counts 1 references, but 0 tables list it"):
        pool.check([])
    with pytest.raises(InvariantError, match="counts 1 references, but 2 tables list it"):
        pool.check([table, table])
    pool._free[table.blocks[0]] = None
    with pytest.raises(InvariantError, match=f"block {table.blocks[0]} is held, but in the free list"):
        pool.check([table])
    del pool._free[table.blocks[0]]
    pool._free.popitem()
    with pytest.raises(InvariantError, match="1 free and 2 held blocks do not add up to 4"):
        pool.check([table])


class PoolMachine(RuleBasedStateMachine):
    """Any run of calls that a scheduler could make; two token values and tiny blocks, so that prefixes often meet."""

    waiting = Bundle("waiting")
    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, 2)
        self.known: dict[BlockTable, tuple[str, list[int]]] = {}
        self.held: list[BlockTable] = []
        self.written: dict[int, tuple[str, tuple[int, ...]]] = {}  # what a block really holds: all tokens up to its end

    @rule(target=waiting, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from(["", "x"]))
    def arrive(self, tokens, salt):
        table = self.pool.new_table(salt)
        self.known[table] = salt, tokens
        return table

    @rule(table=waiting)
    def look(self, table):
        salt, tokens = self.known[table]
        assert self.pool.find(table, tokens) == self.pool.find(self.pool.new_table(salt), tokens)

    @rule(target=tables, table=consumes(waiting))
    def start(self, table):
        salt, tokens = self.known[table]
        found = self.pool.find(table, tokens)
        needed = self.pool.blocks_for(len(tokens)) - len(found) + self.pool.free_among(found)
        if needed > self.pool.free_blocks:
            return multiple()
        self.pool.take(table, found)
        for index, block in enumerate(table.blocks):
            assert self.written[block] == (salt, tuple(tokens[: (index + 1) * 2])), "a hit served other tokens"
        self.pool.extend(table, len(tokens))
        self.held.append(table)
        return table

    @rule(table=tables, part=st.integers(1, 9))
    def compute(self, table, part):
        salt, tokens = self.known[table]
        end = min(part, len(tokens))
        for index in range(table.sealed, end // 2):
            self.written[table.blocks[index]] = salt, tuple(tokens[: (index + 1) * 2])
        self.pool.seal(table, tokens, end)

    @rule(table=consumes(tables))
    def close(self, table):
        alone = self.pool.held_alone(table)
        assert self.pool.release(table) == alone
        self.held.remove(table)

    @invariant()
    def books_balance(self):
        self.pool.check(self.held)

    def teardown(self):
        for table in list(self.held):
            self.close(table)
        assert self.pool.free_blocks == self.pool.blocks


class CollidingPoolMachine(PoolMachine):
    """The same with three names for everything, so that nearly every look-up meets a collision."""

    def __init__(self) -> None:
        super().__init__()
        self.pool._index = _ThreeNames()


class _ThreeNames(PrefixIndex):
    def _digest(self, data: bytes, domain: bytes = b"block") -> bytes:
        return bytes([sum(data) % 3])


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCollidingPool = CollidingPoolMachine.TestCase
TestCollidingPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
