"""Blocks are free or held exactly once, content stays findable until it is overwritten, nothing leaks whatever happens,
and copies, done in their order before anything is computed, bring what was promised."""

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lightwell.errors import InvariantError
from lightwell.kv.block_pool import BlockPool, BlockTable
from lightwell.kv.prefix_index import LEAST_PART, PrefixIndex
from lightwell.runtimes.base import BLOCK_TOKENS

SIZE = 4
LONG = 8  # of blocks whose parts are worth copying


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


# ---- a partly shared block ----


def left_behind(pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """The blocks of a sequence that computed all of its tokens and went."""
    table = computed_table(pool, tokens, salt)
    blocks = list(table.blocks)
    pool.release(table, tokens, len(tokens))
    return blocks


def part(pool: BlockPool, tokens: list[int], salt: str = "") -> tuple[int, BlockTable]:
    table = pool.new_table(salt)
    pool.take(table, pool.find(table, tokens))
    return pool.take_part(table, tokens), table


def test_the_next_turn_goes_on_in_the_last_block_of_the_one_before():
    pool = BlockPool(10, LONG)
    turn = list(range(13))
    first, tail = left_behind(pool, turn)
    shared, table = part(pool, [*turn, 50, 51])
    assert (shared, table.blocks[0]) == (5, first)
    assert pool.drain_copies() == [(tail, table.blocks[1])]
    assert pool.drain_copies() == []
    pool.check([table])


def test_a_full_block_is_copied_as_far_as_its_tokens_agree():
    pool = BlockPool(10, LONG)
    (full,) = left_behind(pool, list(range(8)))
    shared, table = part(pool, [0, 1, 2, 3, 4, 99, 98])
    assert shared == 5
    assert pool.drain_copies() == [(full, table.blocks[0])]


def test_a_block_that_somebody_computes_in_is_copied_too():
    pool = BlockPool(10, LONG)
    holder = computed_table(pool, list(range(8)))
    shared, table = part(pool, [*range(6), 99])
    assert (shared, pool.drain_copies()) == (6, [(holder.blocks[0], table.blocks[0])])
    pool.check([holder, table])


@pytest.mark.parametrize("length", range(1, 3 * LONG + 2))
def test_of_a_prompt_that_was_computed_before_one_token_is_left_to_compute(length: int):
    pool = BlockPool(20, LONG)
    tokens = list(range(length))
    left_behind(pool, tokens)
    shared, table = part(pool, tokens)
    full, rest = divmod(length - 1, LONG)
    assert (table.sealed, shared) == (full, rest if rest >= LEAST_PART else 0)


def test_the_longest_agreement_is_taken():
    pool = BlockPool(20, LONG)
    left_behind(pool, [0, 1, 2, 3, 9, 9, 9, 9])
    best = left_behind(pool, [0, 1, 2, 3, 4, 5, 9, 9])
    left_behind(pool, [0, 1, 2, 3, 4, 9, 9, 9])
    shared, table = part(pool, list(range(8)))
    assert (shared, pool.drain_copies()) == (6, [(best[0], table.blocks[0])])


def test_too_few_tokens_are_neither_kept_nor_copied():
    pool = BlockPool(10, LONG)
    left_behind(pool, [*range(8), *range(LEAST_PART - 1)])
    assert pool.cached_blocks == 1
    assert part(pool, [0, 1, 2, 77, 78])[0] == 0


def test_a_tail_that_is_known_already_costs_no_second_block():
    pool = BlockPool(10, LONG)
    for tokens in (list(range(6)), list(range(6)), list(range(5))):
        left_behind(pool, tokens)
    assert pool.cached_blocks == 1


def test_only_the_computed_part_of_a_tail_is_found():
    pool = BlockPool(10, LONG)
    tokens = list(range(8))
    table = pool.new_table()
    pool.extend(table, 8)
    pool.release(table, tokens, 5)
    assert part(pool, [*tokens, 9])[0] == 5


def test_parts_of_tenants_are_kept_apart():
    pool = BlockPool(10, LONG)
    left_behind(pool, list(range(6)), salt="mine")
    assert part(pool, list(range(8)), salt="yours")[0] == 0
    assert part(pool, list(range(8)), salt="mine")[0] == 6


def test_without_prefix_cache_no_part_is_found():
    pool = BlockPool(10, LONG, prefix_cache=False)
    left_behind(pool, list(range(6)))
    assert part(pool, list(range(8)))[0] == 0


def test_a_table_in_the_middle_of_a_block_takes_no_part():
    pool = BlockPool(10, LONG)
    left_behind(pool, list(range(8)))
    table = pool.new_table()
    pool.extend(table, 2)
    assert pool.take_part(table, list(range(8))) == 0


def test_the_source_is_the_last_to_be_given_out_for_its_own_copy():
    pool = BlockPool(2, LONG)
    (source,) = left_behind(pool, list(range(6)))
    shared, table = part(pool, list(range(8)))
    assert (shared, pool.drain_copies()) == (6, [(source, 1 - source)])
    pool.check([table])


def test_a_source_that_was_used_long_ago_stays_findable():
    pool = BlockPool(2, LONG)
    (source,) = left_behind(pool, list(range(6)))
    left_behind(pool, [50] * 6)
    shared, table = part(pool, [*range(5), 99])
    assert (shared, pool.drain_copies()) == (5, [(source, table.blocks[0])])
    pool.release(table)
    assert part(pool, [*range(6), 99])[0] == 6


def test_the_only_free_block_goes_on_where_it_stands():
    pool = BlockPool(1, LONG)
    (source,) = left_behind(pool, list(range(6)))
    shared, table = part(pool, list(range(8)))
    assert (shared, table.blocks, pool.drain_copies()) == (6, [source], [])
    pool.check([table])


def test_no_part_where_no_block_is_free():
    pool = BlockPool(1, LONG)
    holder = computed_table(pool, list(range(8)))
    assert part(pool, [*range(6), 9])[0] == 0
    pool.check([holder])


# ---- forks ----


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 4, 9, 12, 13])
def test_a_fork_shares_full_blocks_and_copies_the_last(tokens: int, prefix_cache: bool):
    pool = BlockPool(20, SIZE, prefix_cache=prefix_cache)
    known = list(range(14))
    source, target = computed_table(pool, known), pool.new_table()
    pool.fork(source, target, tokens)
    full, rest = divmod(tokens, SIZE)
    assert target.blocks[:full] == source.blocks[:full]
    assert pool.drain_copies() == [*zip(source.blocks[full:], target.blocks[full:], strict=False)]
    assert len(target.blocks) == full + bool(rest)
    assert len(set(source.blocks) & set(target.blocks)) == full
    pool.check([source, target])
    pool.extend(target, 16)
    pool.seal(target, [*known[:tokens], *range(90, 106 - tokens)], 16)
    assert target.sealed == (4 if prefix_cache else 0)
    pool.check([source, target])
    pool.release(source)
    pool.release(target)
    pool.check([])


def test_what_a_fork_computes_is_found_after_what_it_shares():
    pool = BlockPool(20, SIZE)
    source, target = computed_table(pool, list(range(13))), pool.new_table()
    pool.fork(source, target, 6)
    pool.extend(target, 8)
    pool.seal(target, [0, 1, 2, 3, 4, 5, 96, 97], 8)
    assert hits(pool, [0, 1, 2, 3, 4, 5, 96, 97, 0]) == 2
    assert hits(pool, list(range(13))) == 3


def test_a_fork_of_more_than_there_is_or_into_a_table_that_is_used_is_an_error():
    pool = BlockPool(20, SIZE)
    source, target = computed_table(pool, list(range(8))), pool.new_table()
    with pytest.raises(InvariantError, match="cannot share 9 tokens"):
        pool.fork(source, target, 9)
    pool.fork(source, target, 8)
    with pytest.raises(InvariantError, match="with one of 2"):
        pool.fork(source, target, 4)


# ---- the offload store ----


def push_out(pool: BlockPool) -> None:
    """Give every free block to somebody else for a moment."""
    table = pool.new_table("somebody else")
    pool.extend(table, pool.free_blocks * pool.block_tokens)
    pool.release(table)


def test_what_is_overwritten_goes_to_the_store_and_comes_back():
    pool = BlockPool(3, SIZE, offload_slots=5)
    tokens = list(range(13))
    left_behind(pool, tokens[:12])
    push_out(pool)
    assert (pool.cached_blocks, pool.offloaded_blocks) == (0, 3)
    outgoing = pool.drain_copies()
    assert sorted(target for _, target in outgoing) == [3, 4, 5]
    table = pool.new_table()
    found = pool.find(table, tokens)
    assert (len(found), pool.free_among(found)) == (3, 3)
    assert pool.take(table, found) == 12
    slot_of = dict(outgoing)
    restored = pool.drain_copies()
    assert [target for _, target in restored] == table.blocks
    assert [source for source, _ in restored] == [slot_of[block] for block in sorted(slot_of)]
    assert hits(pool, tokens) == 3
    pool.check([table])


def test_what_came_back_is_not_written_again():
    pool = BlockPool(3, SIZE, offload_slots=5)
    tokens = list(range(13))
    for _ in range(3):
        left_behind(pool, tokens[:12])
        push_out(pool)
    written = [target for _, target in pool.drain_copies() if target >= 3]
    assert sorted(written) == [3, 4, 5]


def test_content_that_another_block_has_as_well_is_not_offloaded():
    pool = BlockPool(4, SIZE, offload_slots=5)
    tables = [pool.new_table(), pool.new_table()]
    for table in tables:
        pool.extend(table, SIZE)
    for table in tables:
        pool.seal(table, [1, 2, 3, 4], SIZE)
    pool.release(tables[0])
    push_out(pool)
    assert pool.offloaded_blocks == 0
    assert hits(pool, [1, 2, 3, 4, 5]) == 1


def test_the_store_keeps_what_was_used_last():
    pool = BlockPool(2, SIZE, offload_slots=2)
    a, b, c = ([first] * 4 for first in (1, 2, 3))
    for tokens in (a, b, a, c):
        left_behind(pool, tokens)
        push_out(pool)
    assert [hits(pool, [*tokens, 9]) for tokens in (a, b, c)] == [1, 0, 1]


def test_a_part_of_an_offloaded_block_is_copied_from_its_slot():
    pool = BlockPool(2, LONG, offload_slots=1)
    left_behind(pool, list(range(6)))
    push_out(pool)
    pool.drain_copies()
    shared, table = part(pool, list(range(8)))
    assert (shared, pool.drain_copies()) == (6, [(2, table.blocks[0])])


def test_a_slot_whose_part_is_being_read_is_not_given_to_what_makes_way():
    pool = BlockPool(1, LONG, offload_slots=1)
    left_behind(pool, list(range(6)))
    push_out(pool)
    left_behind(pool, [50] * 6)
    shared, table = part(pool, list(range(8)))
    assert (shared, pool.drain_copies()) == (6, [(0, 1), (1, 0)])
    pool.check([table])


def test_a_slot_that_is_being_read_is_not_given_to_what_makes_way():
    pool = BlockPool(1, SIZE, offload_slots=1)
    left_behind(pool, [1] * 4)
    push_out(pool)
    left_behind(pool, [2] * 4)  # resident, and would go to the one slot
    table = pool.new_table()
    assert pool.take(table, pool.find(table, [1] * 5)) == 4
    assert pool.drain_copies() == [(0, 1), (1, 0)]
    assert hits(pool, [2] * 5) == 0
    pool.check([table])


def test_only_as_much_comes_back_as_blocks_are_free():
    pool = BlockPool(3, SIZE, offload_slots=3)
    tokens = list(range(13))
    left_behind(pool, tokens[:12])
    push_out(pool)
    holder = pool.new_table()
    pool.extend(holder, 2 * SIZE)
    table = pool.new_table()
    assert pool.take(table, pool.find(table, tokens)) == 4
    assert table.sealed == 1
    pool.check([holder, table])


def test_check_tells_of_slots_that_can_be_found_but_are_not_in_use():
    pool = BlockPool(1, SIZE, offload_slots=1)
    left_behind(pool, [1] * 4)
    push_out(pool)
    pool._store._used.clear()
    with pytest.raises(InvariantError, match="slot 1 can be found, but is not in use"):
        pool.check([])


class PoolMachine(RuleBasedStateMachine):
    """Any run of calls that a scheduler could make, over a memory that does the copies and says what each place holds.

    Tokens are mostly the same and blocks small, so that prefixes often meet.
    """

    SLOTS = 0
    waiting = Bundle("waiting")
    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, LONG, offload_slots=self.SLOTS)
        self.known: dict[BlockTable, tuple[str, list[int]]] = {}
        self.computed: dict[BlockTable, int] = {}  # of those that hold blocks
        self.places: dict[int, list] = {block: [None] * LONG for block in range(7 + self.SLOTS)}

    @rule(
        target=waiting,
        length=st.integers(1, 4 * LONG),
        others=st.sets(st.integers(0, 4 * LONG), max_size=2),
        salt=st.sampled_from(["", "", "x"]),
    )
    def arrive(self, length, others, salt):
        table = self.pool.new_table(salt)
        self.known[table] = salt, [int(i in others) for i in range(length)]
        return table

    @rule(table=waiting)
    def look(self, table):
        salt, tokens = self.known[table]
        assert self.pool.find(table, tokens) == self.pool.find(self.pool.new_table(salt), tokens)

    @rule(target=tables, table=consumes(waiting), parts=st.booleans())
    def start(self, table, parts):
        _, tokens = self.known[table]
        found = self.pool.find(table, tokens)
        needed = self.pool.blocks_for(len(tokens)) - len(found) + self.pool.free_among(found)
        if needed > self.pool.free_blocks:
            return multiple()
        computed = self.pool.take(table, found)
        assert computed == len(found) * LONG, "what was reckoned with comes"
        if parts:
            computed += self.pool.take_part(table, tokens)
        assert computed < len(tokens)
        self.pool.extend(table, len(tokens))
        self.computed[table] = computed
        return table

    @rule(target=tables, source=tables, shared=st.integers(1, 4 * LONG))
    def fork(self, source, shared):
        shared = min(shared, self.computed[source])
        if not shared or not self.pool.free_blocks:
            return multiple()
        salt, tokens = self.known[source]
        table = self.pool.new_table(salt)
        self.pool.fork(source, table, shared)
        self.known[table], self.computed[table] = (salt, tokens[: LONG * len(table.blocks)]), shared
        return table

    @rule(table=tables, tokens=st.integers(1, 4 * LONG))
    def compute(self, table, tokens):
        self.copy()
        _, known = self.known[table]
        end = min(self.computed[table] + tokens, len(known))
        for position in range(self.computed[table], end):
            self.places[table.blocks[position // LONG]][position % LONG] = self.content(table, position)
        self.computed[table] = end
        self.pool.seal(table, known, end)
        self.every_computed_token_is_there()

    @rule(table=consumes(tables), remember=st.booleans())
    def close(self, table, remember):
        alone = self.pool.held_alone(table)
        tail = (self.known[table][1], self.computed[table]) if remember else ()
        assert self.pool.release(table, *tail) == alone
        del self.computed[table]

    def content(self, table, position):
        """As in a transformer: what is stored for a token depends on all tokens before it."""
        salt, tokens = self.known[table]
        return salt, tuple(tokens[: position + 1])

    def copy(self):
        for source, target in self.pool.drain_copies():
            self.places[target] = list(self.places[source])

    def every_computed_token_is_there(self):
        for table, computed in self.computed.items():
            for position in range(computed):
                held = self.places[table.blocks[position // LONG]][position % LONG]
                assert held == self.content(table, position), "a block holds other tokens"

    @invariant()
    def books_balance(self):
        self.pool.check(self.computed)

    def teardown(self):
        self.copy()
        self.every_computed_token_is_there()
        for table in list(self.computed):
            self.close(table, True)
        assert self.pool.free_blocks == self.pool.blocks


class OffloadingPoolMachine(PoolMachine):
    SLOTS = 4


class TinyStorePoolMachine(PoolMachine):
    SLOTS = 1


class CollidingPoolMachine(PoolMachine):
    """The same with three names for everything, so that nearly every look-up meets a collision."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.pool._index = _ThreeNames()


class _ThreeNames(PrefixIndex):
    def _digest(self, data: bytes, domain: bytes = b"block") -> bytes:
        return bytes([sum(data) % 3])


MACHINE = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase
TestPool.settings = MACHINE
TestOffloadingPool = OffloadingPoolMachine.TestCase
TestOffloadingPool.settings = MACHINE
TestTinyStorePool = TinyStorePoolMachine.TestCase
TestTinyStorePool.settings = MACHINE
TestCollidingPool = CollidingPoolMachine.TestCase
TestCollidingPool.settings = MACHINE
