"""PrefixIndex: finds the blocks that hold a given run of tokens after a given run of tokens.

A block is named by a keyed hash of its parent's name and its own tokens, so a name stands for the whole prefix, for the
tenant's salt and for the model's version. A name only leads to a candidate: parent and tokens are compared. Contents
are also listed by their parent and first few tokens, to find one that shares only its beginning with what is wanted.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakValueDictionary

from lightwell.units import Tokens

LEAST_PART: Tokens = 4
"""The fewest tokens of a block that are worth copying. A copy pays from the first token on (docs/benchmarks.md), but
shorter beginnings are mostly what a chat template puts before everything, and to keep them would cost full blocks."""

_MOST_CANDIDATES = 16  # contents with the same beginning that a search for the longest agreement looks at, newest first
_TOKEN_BYTES = 4
_DIGEST_BYTES = 16


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prefix:
    """The content of one block after a given context, full unless it is the end of a sequence that left. ``blocks`` are
    those that hold it, oldest first: sequences that computed the same content side by side each have their own, because
    block tables are append-only."""

    parent: "Prefix | None"  # None for the empty prefix of a tenant
    digest: bytes
    tokens: bytes  # packed as 32-bit integers
    blocks: dict[int, None] = field(default_factory=dict)


class PrefixIndex:
    """``hash_key`` is random unless given, so that nobody outside can predict or collide the names of others' prompts
    (vllm PR#17045, CVE-2025-46570)."""

    def __init__(self, model_version: str = "", hash_key: bytes | None = None) -> None:
        self._model_version = model_version
        self._key = os.urandom(32) if hash_key is None else hash_key
        self._by_digest: dict[bytes, Prefix] = {}
        self._by_block: dict[int, Prefix] = {}
        self._by_opening: dict[tuple[Prefix, bytes], dict[Prefix, None]] = {}  # oldest first
        self._roots: WeakValueDictionary[str, Prefix] = WeakValueDictionary()

    def root(self, salt: str) -> Prefix:
        """The empty prefix of a tenant; the same object for as long as anything hangs on it."""
        root = self._roots.get(salt)
        if root is None:
            digest = self._digest(repr((self._model_version, salt)).encode(), b"root")
            root = self._roots[salt] = Prefix(None, digest, b"")
        return root

    def find(self, parent: Prefix, tokens: list[int]) -> Prefix | None:
        """The content of a block of just these tokens after ``parent``, where some block holds it."""
        packed = _pack(tokens)
        found = self._by_digest.get(self._digest(parent.digest + packed))
        return found if found is not None and _is(found, parent, packed) else None

    def find_part(self, parent: Prefix, tokens: list[int]) -> tuple[Prefix, Tokens] | None:
        """The content after ``parent`` that agrees with the most of these tokens from the first on, and how many.

        None below LEAST_PART. Of many with the same beginning only the newest are looked at, so the work is bounded.
        """
        packed = _pack(tokens)
        candidates = self._by_opening.get((parent, _opening(packed)), {}) if len(tokens) >= LEAST_PART else {}
        newest = islice(reversed(candidates), _MOST_CANDIDATES)
        return max(((prefix, _agreeing(prefix.tokens, packed)) for prefix in newest), key=lambda c: c[1], default=None)

    def insert(self, parent: Prefix, tokens: list[int], block: int) -> Prefix:
        """Remember that ``block`` holds these tokens after ``parent``."""
        packed = _pack(tokens)
        digest = self._digest(parent.digest + packed)
        prefix = self._by_digest.get(digest)
        if prefix is None or not _is(prefix, parent, packed):
            if prefix is not None:  # a collision, or a child whose parent was forgotten before it: no longer reachable
                for other in list(prefix.blocks):
                    self.forget(other)
            prefix = self._by_digest[digest] = Prefix(parent, digest, packed)
            self._by_opening.setdefault((parent, _opening(packed)), {})[prefix] = None
        self.add(prefix, block)
        return prefix

    def add(self, prefix: Prefix, block: int) -> None:
        """Remember that ``block`` holds this content too."""
        prefix.blocks[block] = None
        self._by_block[block] = prefix

    def content(self, block: int) -> Prefix | None:
        """What a block holds, where it can be found."""
        return self._by_block.get(block)

    def forget(self, block: int) -> None:
        """The block is about to hold something else. Does nothing for a block that is not in the index."""
        prefix = self._by_block.pop(block, None)
        if prefix is None:
            return
        del prefix.blocks[block]
        if not prefix.blocks:
            del self._by_digest[prefix.digest]
            self._forget_opening(prefix)

    def _forget_opening(self, prefix: Prefix) -> None:
        assert prefix.parent is not None, "no block holds the empty prefix"
        key = prefix.parent, _opening(prefix.tokens)
        siblings = self._by_opening[key]
        del siblings[prefix]
        if not siblings:
            del self._by_opening[key]

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def blocks(self) -> KeysView[int]:
        """The blocks that can be found."""
        return self._by_block.keys()

    def __len__(self) -> int:
        return len(self._by_block)

    def inconsistencies(self) -> Iterator[str]:
        """What contradicts itself in the index, in words; nothing when all is well."""
        for block, prefix in self._by_block.items():
            if block not in prefix.blocks:
                yield f"block {block} is indexed under content that does not list it"
            if self._by_digest.get(prefix.digest) is not prefix:
                yield f"block {block} holds content that cannot be found by its hash"
        listed = sum([len(prefix.blocks) for prefix in self._by_digest.values()])
        if listed != len(self._by_block):
            yield f"the contents list {listed} blocks, but {len(self._by_block)} are indexed"
        opened = {prefix for siblings in self._by_opening.values() for prefix in siblings}
        if opened != set(self._by_digest.values()):
            yield f"{len(opened)} contents are listed by their beginning, but {len(self._by_digest)} by their hash"

    def _digest(self, data: bytes, domain: bytes = b"block") -> bytes:
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=self._key, person=domain).digest()


def _pack(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def _opening(packed: bytes) -> bytes:
    return packed[: LEAST_PART * _TOKEN_BYTES]


def _agreeing(a: bytes, b: bytes) -> Tokens:
    """How many packed tokens agree from the first on: one comparison of two large numbers, in place of one a token."""
    length = min(len(a), len(b))
    differing = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    same_bits = (differing & -differing).bit_length() - 1 if differing else 8 * length
    return same_bits // (8 * _TOKEN_BYTES)


def _is(prefix: Prefix, parent: Prefix, packed: bytes) -> bool:
    return prefix.parent is parent and prefix.tokens == packed
