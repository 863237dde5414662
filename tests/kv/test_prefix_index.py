"""The hash chain: names stand for whole prefixes, and a name alone is never believed."""

import pytest

from lightwell.kv.prefix_index import LEAST_PART, PrefixIndex

A, B, C = [1, 2], [3, 4], [5, 6]
LONG = list(range(100, 132))


def test_a_block_is_found_only_after_the_prefix_it_was_computed_after():
    index = PrefixIndex()
    root = index.root("")
    first = index.insert(root, A, block=0)
    second = index.insert(first, B, block=1)
    assert index.find(root, A) is first
    assert index.find(first, B) is second
    assert index.find(root, B) is None
    assert index.find(second, B) is None


def test_names_differ_by_salt_model_version_and_key():
    def name(version: str, key: bytes, salt: str) -> bytes:
        return PrefixIndex(version, key).root(salt).digest

    base = name("v1", b"k", "salt")
    assert name("v1", b"k", "salt") == base
    assert base not in {name("v2", b"k", "salt"), name("v1", b"K", "salt"), name("v1", b"k", "other")}
    assert name("v1'", b"k", "") != name("v1", b"k", "'")


def test_the_key_is_random_unless_given():
    # public report: vllm PR#12621, the hash of the same prompt was the same in every process
    assert PrefixIndex().root("").digest != PrefixIndex().root("").digest


def test_the_same_salt_gives_the_same_root_while_anything_hangs_on_it():
    index = PrefixIndex()
    index.insert(index.root("tenant"), A, block=0)
    assert index.find(index.root("tenant"), A) is not None
    assert index.find(index.root("other"), A) is None


def test_roots_of_tenants_without_blocks_are_not_kept():
    index = PrefixIndex()
    for tenant in range(100):
        index.insert(index.root(str(tenant)), A, block=0)
        index.forget(0)
    assert len(index._roots) <= 1


def test_content_stays_findable_while_one_of_its_blocks_is_left():
    index = PrefixIndex()
    prefix = index.insert(index.root(""), A, block=0)
    assert index.insert(index.root(""), A, block=7) is prefix
    index.forget(0)
    assert index.find(index.root(""), A) is prefix
    assert list(prefix.blocks) == [7]
    index.forget(7)
    assert index.find(index.root(""), A) is None
    assert len(index) == 0


def test_forgetting_an_unknown_block_does_nothing():
    index = PrefixIndex()
    index.forget(3)
    assert list(index.inconsistencies()) == []


def test_a_child_of_a_forgotten_parent_is_never_found_again():
    index = PrefixIndex()
    root = index.root("")
    parent = index.insert(root, A, block=0)
    orphan = index.insert(parent, B, block=1)
    index.forget(0)
    again = index.insert(root, A, block=2)
    assert index.find(again, B) is None
    child = index.insert(again, B, block=3)
    assert child is not orphan
    assert 1 not in index
    assert index.find(again, B) is child
    assert list(index.inconsistencies()) == []


def agreement(index: PrefixIndex, tokens: list[int]) -> int:
    found = index.find_part(index.root(""), tokens)
    return found[1] if found else 0


@pytest.mark.parametrize("same", [*range(LEAST_PART, 33)])
def test_a_content_is_found_by_how_far_it_agrees(same: int):
    index = PrefixIndex()
    index.insert(index.root(""), LONG, block=0)
    assert agreement(index, LONG[:same]) == same
    assert agreement(index, [*LONG[:same], *[9] * (32 - same)]) == same
    assert agreement(index, LONG[: LEAST_PART - 1]) == 0
    assert agreement(index, [9, *LONG[1:]]) == 0


@pytest.mark.parametrize("bit", [1, 1 << 8, 1 << 30])
def test_tokens_that_differ_in_any_bit_do_not_agree(bit: int):
    index = PrefixIndex()
    index.insert(index.root(""), LONG, block=0)
    assert agreement(index, [*LONG[:10], LONG[10] ^ bit, *LONG[11:]]) == 10


def test_what_was_forgotten_is_not_found_by_its_beginning():
    index = PrefixIndex()
    index.insert(index.root(""), LONG, block=0)
    index.forget(0)
    assert agreement(index, LONG) == 0
    assert index._by_opening == {}


def test_a_search_looks_at_the_newest_of_many_only():
    index = PrefixIndex()
    for block in range(1000):
        index.insert(index.root(""), [*LONG[:20], block], block)
    assert agreement(index, [*LONG[:20], 999]) == 21
    assert agreement(index, [*LONG[:20], 0]) == 20


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> PrefixIndex:
    monkeypatch.setattr(PrefixIndex, "_digest", lambda self, data, domain=b"": b"same")
    return PrefixIndex()


def test_colliding_names_never_serve_other_tokens(colliding: PrefixIndex):
    root = colliding.root("")
    first = colliding.insert(root, A, block=0)
    assert colliding.find(root, B) is None
    assert colliding.find(first, A) is None
    assert colliding.find(root, A) is first


def test_the_later_of_two_colliding_contents_takes_the_name(colliding: PrefixIndex):
    root = colliding.root("")
    first = colliding.insert(root, A, block=0)
    second = colliding.insert(first, C, block=1)
    assert colliding.find(first, C) is second
    assert colliding.find(root, A) is None
    assert 0 not in colliding
    assert list(colliding.inconsistencies()) == []


def test_inconsistencies_are_told():
    index = PrefixIndex()
    prefix = index.insert(index.root(""), A, block=0)
    prefix.blocks.clear()
    faults = " ".join(index.inconsistencies())
    assert "block 0 is indexed under content that does not list it" in faults
    assert "list 0 blocks, but 1" in faults
    index._by_opening.clear()
    assert "0 contents are listed by their beginning, but 1" in " ".join(index.inconsistencies())
