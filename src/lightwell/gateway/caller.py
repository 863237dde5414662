"""Caller: who sends a request, and what is theirs alone. Found by its key before any handler runs."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from lightwell.errors import PermissionDenied
from lightwell.gateway.bodies import Truncation


@dataclass(frozen=True)
class Caller:
    """``key``: the id of the key (never the key itself), empty where none is needed. ``models``: the names that it may
    use, None for all. ``truncation``: what to do with a conversation that does not fit, where the request does not say.
    Callers of one ``team`` share what they keep; without a team each user has their own."""

    key: str
    user: str
    team: str = ""
    models: frozenset[str] | None = None
    admin: bool = False
    truncation: Truncation | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def check_admin(self) -> None:
        """Raises PermissionDenied."""
        if not self.admin:
            raise PermissionDenied("This is for administrators: use a key that was made with --admin.")

    @property
    def tenant(self) -> str:
        """Whose files, batches, stored answers and cached prefixes these are."""
        return f"team:{self.team}" if self.team else f"user:{self.user}"


LOCAL = Caller(key="", user="local", admin=True)  # whoever is on this machine, where no key is needed


def caller_of(connection: HTTPConnection) -> Caller:
    caller: Caller = connection.state.caller
    return caller
