"""``lightwell keys``: on the store itself, whether a server runs over it or not."""

import time
from typing import Any

import msgspec

from lightwell.cli.stored import with_database
from lightwell.cli.table import print_table
from lightwell.gateway.keys import Key, hashed, new_key, new_secret, rotated
from lightwell.gateway.keys_api import check_rotatable, described, duration, no_such_key


def create(json: bool, *, expires_in: str | None, **facts: Any) -> None:
    """Prints the key, once."""
    secret = new_secret()
    lifetime = None if expires_in is None else duration(expires_in, "--expires-in")
    key = new_key(secret, time.time(), lifetime=lifetime, **facts)
    with_database(lambda database: database.keys.add(key, hashed(secret)))
    _show_new(key, secret, json)


def listed(json: bool) -> None:
    keys, now = with_database(lambda database: database.keys.all()), time.time()
    if json:
        for key in keys:
            print(msgspec.json.encode(described(key)).decode())
        return
    rows = [("ID", "KEY", "NAME", "USER", "TEAM", "MODELS", "ADMIN", "STATUS", "EXPIRES")]
    for key in keys:
        models = "all" if key.models is None else ",".join(key.models)
        admin = "yes" if key.admin else ""
        rows.append(
            (key.id, f"{key.prefix}...", key.name, key.user, key.team, models, admin, key.status(now), _day(key))
        )
    print_table(rows)


def rotate(name: str, overlap: str, json: bool) -> None:
    """Prints the new key, once. Raises NotFound, InvalidRequest."""
    old, now, secret = _found(name), time.time(), new_secret()
    check_rotatable(old, now)
    new, until = rotated(old, secret, now), now + duration(overlap, "--overlap")
    with_database(lambda database: database.keys.rotate(old, new, hashed(secret), until))
    _show_new(new, secret, json)


def revoke(name: str) -> None:
    """Running servers refuse it within a second. Raises NotFound."""
    _found(name)
    with_database(lambda database: database.keys.revoke(name, time.time()))
    print(f"{name} is revoked.")


def _found(name: str) -> Key:
    key = with_database(lambda database: database.keys.by_id(name))
    if key is None:
        raise no_such_key(name)
    return key


def _show_new(key: Key, secret: str, json: bool) -> None:
    if json:
        print(msgspec.json.encode(described(key) | {"key": secret}).decode())
        return
    print(f"{secret}\n\nThis is key {key.id} of {key.user}. It is shown only now: keep it.")


def _day(key: Key) -> str:
    return "never" if key.expires_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(key.expires_at))
