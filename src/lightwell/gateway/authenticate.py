"""Authenticate: who the caller is, said to every handler before it runs. Everything is closed that is not named here.

Where the server listens on a loopback address only, whoever reaches it is on this machine and needs no key. A web page
in a browser of this machine reaches it too, and is told apart by its Host or its Origin.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lightwell.errors import AuthenticationFailed, LightwellError, PermissionDenied
from lightwell.gateway.caller import LOCAL, Caller
from lightwell.gateway.failures import error_response
from lightwell.gateway.keys import PREFIX, KeyRing

PUBLIC = frozenset({"/health", "/readyz", "/livez", "/version", "/metrics"})
_SUBPROTOCOL = "openai-insecure-api-key."  # by which OpenAI's clients in browsers send a key to a WebSocket
_FIXED = Caller(key="", user="api-key", admin=True)


@dataclass(frozen=True)
class Access:
    """``required``: nobody comes in without a key. ``fixed_key``: one that the operator set, beside those of the store.
    ``public``: further paths that are open to all."""

    required: bool = False
    fixed_key: str | None = None
    public: frozenset[str] = frozenset()


class Authenticate:
    def __init__(self, app: ASGIApp, access: Access, keys: KeyRing) -> None:
        self.app, self._access, self._keys = app, access, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            caller = await self._caller(scope["path"], Headers(scope=scope), scope.get("subprotocols", ()))
        except LightwellError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)

    async def _caller(self, path: str, headers: Headers, subprotocols: Iterable[str]) -> Caller:
        """Raises AuthenticationFailed, PermissionDenied."""
        if not self._access.required:
            _check_local(headers)
        if path in PUBLIC or path in self._access.public:
            return LOCAL
        secret = _secret(headers, subprotocols)
        fixed = self._access.fixed_key
        if secret and fixed and hmac.compare_digest(secret.encode(), fixed.encode()):
            return _FIXED
        if secret and (self._access.required or secret.startswith(PREFIX)):
            if key := await self._keys.find(secret):
                return key.caller()
            raise AuthenticationFailed("The API key is not known here, has expired, or was revoked.")
        if self._access.required:
            raise AuthenticationFailed("An API key is required: send it as 'Authorization: Bearer KEY'.")
        return LOCAL  # clients send some text where they have no key


def _secret(headers: Headers, subprotocols: Iterable[str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    by_protocol = (name.removeprefix(_SUBPROTOCOL) for name in subprotocols if name.startswith(_SUBPROTOCOL))
    return headers.get("x-api-key", "") or next(by_protocol, "")


def _check_local(headers: Headers) -> None:
    """Raises PermissionDenied for what a page of some other site sends, by whatever name it found this machine."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not is_loopback(_name(f"//{host}")):
        raise PermissionDenied(
            f"This server is for its own machine, and was asked as {host[:100]!r}: use 127.0.0.1 or localhost."
        )
    if origin is not None and not is_loopback(_name(origin)):
        raise PermissionDenied(
            f"This server is for its own machine, and not for the web page at {origin[:100]!r}. To let pages and other "
            "machines use it, start it with --require-keys or on another --host, and give them a key."
        )


def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine to itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
