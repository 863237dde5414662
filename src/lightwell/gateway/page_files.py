"""The page at /: the built files of web/, under a policy by which a browser lets it talk to this server alone."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.gateway.gateway import Gateway

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # keep it, but ask each time whether it is current: names do not change with contents
    "vary": "accept-encoding",
}


def page_routes(_: Gateway) -> list[Route]:
    """A route for each file and none for anything else, so no path can lead out of the folder."""
    return [_route(_File(path.name, path.read_bytes())) for path in sorted(FOLDER.iterdir())]


@dataclass
class _File:
    name: str
    content: bytes

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @cached_property
    def tag(self) -> str:
        """Weak, because it is the same whether compressed or not."""
        return f'W/"{hashlib.blake2b(self.content, digest_size=8).hexdigest()}"'


def _route(file: _File) -> Route:
    async def serve(request: Request) -> Response:
        headers = _HEADERS | {"etag": file.tag, "content-type": _TYPES[Path(file.name).suffix]}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.zipped, headers=headers | {"content-encoding": "gzip"})
        return Response(file.content, headers=headers)

    return Route("/" if file.name == "index.html" else f"/{file.name}", serve)
