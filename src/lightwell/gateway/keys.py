"""API keys: made, known by their hash, and looked up again after less than a second, so that a revoked one stops."""

import hashlib
import re
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lightwell.gateway.bodies import Truncation
from lightwell.gateway.caller import Caller
from lightwell.units import Seconds

if TYPE_CHECKING:
    from lightwell.gateway.store import Store

PREFIX = "lw-"
_SHAPE = re.compile(r"lw-[A-Za-z0-9_-]{43}")  # 256 random bits
_SHOWN = len(PREFIX) + 5
_FRESH_SECONDS: Seconds = 0.9
_REMEMBERED = 10_000


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key; the key itself is known to its holder alone. Times are since 1970."""

    id: str
    prefix: str
    name: str
    user: str
    team: str = ""
    models: list[str] | None = None  # None: all
    admin: bool = False
    truncation: Truncation | None = None
    created_at: Seconds
    expires_at: Seconds | None = None
    revoked_at: Seconds | None = None
    rotated_from: str | None = None

    def status(self, now: Seconds) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"

    def caller(self) -> Caller:
        models = None if self.models is None else frozenset(self.models)
        return Caller(self.id, self.user, self.team, models, self.admin, self.truncation)


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hashed(secret: str) -> str:
    """One hash without salt or stretching is enough for what nobody can guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_key(
    secret: str,
    now: Seconds,
    *,
    user: str,
    name: str = "",
    team: str = "",
    models: list[str] | None = None,
    admin: bool = False,
    truncation: Truncation | None = None,
    lifetime: Seconds | None = None,
) -> Key:
    return Key(
        id=f"key_{uuid.uuid4().hex[:16]}",
        prefix=secret[:_SHOWN],
        name=name,
        user=user,
        team=team,
        models=models,
        admin=admin,
        truncation=truncation,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )


def rotated(old: Key, secret: str, now: Seconds) -> Key:
    """A key that may what the old one might, for as long."""
    return msgspec.structs.replace(
        old, id=f"key_{uuid.uuid4().hex[:16]}", prefix=secret[:_SHOWN], created_at=now, rotated_from=old.id
    )


class KeyRing:
    """Looks keys up, unknown ones included: a flood of wrong keys is no flood of questions to the database."""

    def __init__(self, store: "Store", now: Callable[[], Seconds] = time.time) -> None:
        self._store, self._now = store, now
        self._seen: OrderedDict[str, tuple[Seconds, Key | None]] = OrderedDict()

    async def find(self, secret: str) -> Key | None:
        """The key that this is, where it is one and is active."""
        if not _SHAPE.fullmatch(secret):
            return None
        digest, now = hashed(secret), self._now()
        read_at, key = self._seen.get(digest, (-_FRESH_SECONDS, None))
        if not 0 <= now - read_at < _FRESH_SECONDS:
            key = await (await self._store.database()).keys.find(digest)
            self._seen[digest] = (now, key)
            self._seen.move_to_end(digest)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return key if key is not None and key.status(now) == "active" else None

    def forget(self) -> None:
        """Something was changed here: it acts at once."""
        self._seen.clear()
