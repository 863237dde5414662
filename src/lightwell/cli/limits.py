"""``lightwell limits``: on the store itself; a running server sees a change within a second."""

from typing import Any

import msgspec

from lightwell.cli.stored import with_database
from lightwell.cli.table import print_table
from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.limits import Limits
from lightwell.gateway.limits_api import checked_limited, described


def put(subject: str, limits: dict[str, Any]) -> None:
    """Raises InvalidRequest where nothing is limited."""
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        raise InvalidRequest("Give at least one limit; `lightwell limits clear` takes all away.")
    rules = msgspec.convert(given, Limits)
    with_database(lambda database: database.limits.put(checked_limited(subject), rules))
    _show({subject: rules})


def listed(json: bool) -> None:
    rules = with_database(lambda database: database.limits.all())
    if not json:
        _show(rules)
        return
    for subject in sorted(rules):
        print(msgspec.json.encode(described(subject, rules[subject])).decode())


def clear(subject: str) -> None:
    """Raises NotFound."""
    if not with_database(lambda database: database.limits.delete(checked_limited(subject))):
        raise NotFound(f"There are no limits for {subject!r}.")
    print(f"{subject} has no limits.")


def _show(rules: dict[str, Limits]) -> None:
    rows = [("SUBJECT", "LIMIT", "OF")]
    for subject in sorted(rules):
        rows += [(subject, name, f"{value:g}") for name, value in msgspec.to_builtins(rules[subject]).items()]
    print_table(rows)
