"""Authenticate: who the caller is, said to every handler before it runs."""

from starlette.types import ASGIApp, Receive, Scope, Send

from lightwell.gateway.caller import LOCAL


class Authenticate:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = LOCAL
        await self.app(scope, receive, send)
