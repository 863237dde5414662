"""The page's files as the gateway serves them; what it does in a browser is in tests/system/test_page.py."""

import gzip
import re
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from lightwell.gateway.page_files import FOLDER
from tests.gateway.test_generation_api import error
from tests.gateway.test_serve import running

TYPES = {
    "/": "text/html; charset=utf-8",
    "/page.js": "text/javascript; charset=utf-8",
    "/page.css": "text/css; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
}
WAYS_OUT = (
    "/../page_files.py",
    "/page.js/../../page_files.py",
    "/%2e%2e/page_files.py",
    "/..%2fpage_files.py",
    "/page/../page.js",
)
MOST_BYTES = 60_000  # compressed, all files of a first load together


def test_the_folder_holds_the_page_and_nothing_else():
    assert {path.name for path in FOLDER.iterdir()} == {"index.html", "page.js", "page.css", "favicon.svg"}


def test_the_page_names_only_its_own_files_and_holds_no_code_that_the_policy_forbids():
    html = (FOLDER / "index.html").read_text()
    assert {f"/{name}" for name in re.findall(r'(?:src|href)="\./([^"]+)"', html)} == TYPES.keys() - {"/"}
    assert html.count("src=") + html.count("href=") == len(TYPES) - 1
    assert not re.search(r"<style|style=|\son\w+=|<script[^>]*>[^<]", html)
    assert "url(" not in (FOLDER / "page.css").read_text()


@pytest.mark.parametrize("path", TYPES)
async def test_each_file_has_its_type_and_the_policy(client, path):
    response = await client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == TYPES[path]
    assert response.content == (FOLDER / (path[1:] or "index.html")).read_bytes()
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    own = {"script-src", "style-src", "img-src", "connect-src"}
    none = {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert policy == dict.fromkeys(own, "'self'") | dict.fromkeys(none, "'none'")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", TYPES)
async def test_a_kept_file_is_asked_about_and_not_sent_again(client, path):
    first = await client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = await client.get(path, headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_tags_differ_between_files(client):
    assert len({(await client.get(path)).headers["etag"] for path in TYPES}) == len(TYPES)


async def test_compressed_for_those_who_take_it_and_small(client):
    total = 0
    for path in TYPES:
        plain = await client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        async with client.stream("GET", path, headers={"accept-encoding": "gzip, br"}) as packed:
            sent = b"".join([piece async for piece in packed.aiter_raw()])
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
        assert gzip.decompress(sent) == plain.content
        total += len(sent)
    assert total < MOST_BYTES


@pytest.mark.parametrize("path", ["/index.html", "/page", "/page/", "/page.js/", "/page.js.map", "//", "/favicon.ico"])
async def test_other_paths_stay_404_with_an_error_object(client, path):
    assert error(await client.get(f"http://localhost{path}"), 404)["type"] == "not_found_error"


async def test_the_page_is_only_read(client):
    refused = await client.post("/")
    assert error(refused, 405)["code"] == "method_not_allowed"
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_head_says_what_get_would_and_no_path_leads_out():
    """Over a socket, because a client would tidy such paths before it sends them."""
    with running() as server, httpx.Client(base_url=server.url) as client:
        for path, kind in TYPES.items():
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", kind)
            assert {**head.headers, **_own_to_each(get)} == dict(get.headers)
        for path in (
            "/../page_files.py",
            "/page.js/../../page_files.py",
            "/%2e%2e/page_files.py",
            "/..%2fpage_files.py",
            "/page/../page.js",
        ):
            status, body = _raw(server.url, path)
            assert (status, b"not_found" in body) == (404, True), path


def _own_to_each(response: httpx.Response) -> dict[str, str]:
    return {name: response.headers[name] for name in ("date", "x-request-id", "openai-processing-ms")}


def _raw(url: str, path: str) -> tuple[int, bytes]:
    """Status and the rest of the answer to a GET of exactly this path."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer
