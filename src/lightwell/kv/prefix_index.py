"""PrefixIndex: finds the blocks that hold a given run of tokens after a given run of tokens.

A full block is named by a keyed hash of its parent's name and its own tokens, so a name stands for the whole prefix,
for the tenant's salt and for the model's version. A name only leads to a candidate: parent and tokens are compared.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

_DIGEST_BYTES = 16


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prefix:
    """The content of one full block after a given context. ``blocks`` are those that hold it, oldest first: sequences
    that computed the same content side by side each have their own, because block tables are append-only."""

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
        self._roots: WeakValueDictionary[str, Prefix] = WeakValueDictionary()

    def root(self, salt: str) -> Prefix:
        """The empty prefix of a tenant; the same object for as long as anything hangs on it."""
        root = self._roots.get(salt)
        if root is None:
            digest = self._digest(repr((self._model_version, salt)).encode(), b"root")
            root = self._roots[salt] = Prefix(None, digest, b"")
        return root

    def find(self, parent: Prefix, tokens: list[int]) -> Prefix | None:
        """The content of a full block of these tokens after ``parent``, where some block holds it."""
        packed = _pack(tokens)
        found = self._by_digest.get(self._digest(parent.digest + packed))
        return found if found is not None and _is(found, parent, packed) else None

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
        prefix.blocks[block] = None
        self._by_block[block] = prefix
        return prefix

    def forget(self, block: int) -> None:
        """The block is about to hold something else. Does nothing for a block that is not in the index."""
        prefix = self._by_block.pop(block, None)
        if prefix is None:
            return
        del prefix.blocks[block]
        if not prefix.blocks:
            del self._by_digest[prefix.digest]

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def __len__(self) -> int:
        """The number of blocks that can be found."""
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

    def _digest(self, data: bytes, domain: bytes = b"block") -> bytes:
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=self._key, person=domain).digest()


def _pack(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def _is(prefix: Prefix, parent: Prefix, packed: bytes) -> bool:
    return prefix.parent is parent and prefix.tokens == packed
