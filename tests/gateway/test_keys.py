"""Who comes in: every route but a short list is closed, and no key that ended opens anything."""

import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from lightwell.gateway.app import create_app
from lightwell.gateway.authenticate import PUBLIC, Access, is_loopback
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.keys import KeyRing, hashed, new_key, new_secret, rotated
from lightwell.gateway.store import Store
from tests.gateway.fake_engine import FakeEngine, make_client, make_gateway

QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def closed(gateway: Gateway) -> Gateway:
    """A gateway on an address that others reach."""
    gateway.access = Access(required=True)
    return gateway


async def add(gateway: Gateway, **facts) -> tuple[str, str]:
    """A key and its id."""
    secret = new_secret()
    key = new_key(secret, time.time(), **({"user": "u"} | facts))
    await (await gateway.store.database()).keys.add(key, hashed(secret))
    return secret, key.id


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def every_route(gateway: Gateway) -> list[tuple[str, str]]:
    routes = create_app(gateway).routes
    return [
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or {"GET"}) - {"HEAD"}
    ]


async def test_every_route_but_a_short_list_is_closed(closed):
    pages = {path for _, path in every_route(closed)} & {"/", "/page.js", "/page.css", "/favicon.svg"}
    assert len(pages) == 4
    async with make_client(closed) as client:
        for method, path in every_route(closed):
            response = await client.request(method, path)
            if path in PUBLIC | pages:
                assert response.status_code == 200, path
            else:
                assert response.status_code == 401, path
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/nowhere", "/v1/", "/health/", "/x//health", "/v1/admin", "/metrics/x"):
            assert (await client.get(path)).status_code == 401


async def test_administrators_routes_are_closed_to_others(closed):
    secret, _ = await add(closed)
    admin, _ = await add(closed, admin=True)
    async with make_client(closed) as client:
        paths = [(method, path) for method, path in every_route(closed) if path.startswith("/v1/admin/")]
        assert len(paths) >= 8
        for method, path in paths:
            response = await client.request(method, path, headers=bearer(secret))
            assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error"), path
            assert (await client.request(method, path, headers=bearer(admin))).status_code != 403


@pytest.mark.parametrize(
    "headers",
    [lambda key: bearer(key), lambda key: {"x-api-key": key}, lambda key: {"authorization": f"bearer  {key} "}],
)
async def test_a_key_opens_the_server(closed, engine, headers):
    secret, _ = await add(closed, user="ann", team="red")
    async with make_client(closed) as client:
        response = await client.post("/v1/chat/completions", json=QUESTION, headers=headers(secret))
    assert response.status_code == 200
    assert engine.requests[-1].salt.startswith("team:red/")


@given(st.dictionaries(st.sampled_from(["authorization", "x-api-key"]), st.text(st.characters(max_codepoint=255))))
def test_no_garbage_opens_it_or_breaks_it(headers):
    gateway = make_gateway(FakeEngine())
    gateway.access = Access(required=True, fixed_key="right")
    with TestClient(create_app(gateway), base_url="http://localhost") as client:
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        try:
            response = client.get("/v1/models", headers=raw)
        except (httpx.LocalProtocolError, ValueError):
            return  # the client itself would not send it
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"


async def test_a_fixed_key_is_one_of_an_administrator(gateway):
    gateway.access = Access(required=True, fixed_key="open sesame")
    async with make_client(gateway) as client:
        assert (await client.get("/v1/admin/keys", headers=bearer("open sesame"))).status_code == 200
        assert (await client.get("/v1/models", headers=bearer("open"))).status_code == 401


async def test_a_key_shows_only_its_models(closed):
    secret, _ = await add(closed, models=["alias"])
    async with make_client(closed) as client:
        listed = (await client.get("/v1/models", headers=bearer(secret))).json()["data"]
        assert [model["id"] for model in listed] == ["alias"]
        refused = await client.post("/v1/chat/completions", json=QUESTION, headers=bearer(secret))
        assert refused.status_code == 404
        assert "tiny" not in refused.json()["error"]["message"].split("this server has")[1]
        allowed = await client.post("/v1/chat/completions", json=QUESTION | {"model": "alias"}, headers=bearer(secret))
        assert allowed.status_code == 200
        nameless = await client.post(
            "/v1/chat/completions", json={"messages": QUESTION["messages"]}, headers=bearer(secret)
        )
        assert (nameless.status_code, nameless.json()["model"]) == (200, "alias")


async def test_keys_are_made_rotated_and_revoked(closed):
    admin, _ = await add(closed, admin=True)
    async with make_client(closed) as client:
        client.headers.update(bearer(admin))
        asked = {"user": "ann", "team": "red", "models": ["tiny"], "expires_in": "30d", "name": "laptop"}
        made = (await client.post("/v1/admin/keys", json=asked)).json()
        assert made["key"].startswith(made["prefix"])
        assert made["expires_at"] - made["created_at"] == 30 * 86400
        listed = (await client.get("/v1/admin/keys")).json()["data"]
        assert all(made["key"] not in str(key) and "hash" not in key for key in listed)
        assert (await client.get("/v1/models", headers=bearer(made["key"]))).status_code == 200

        new = (await client.post(f"/v1/admin/keys/{made['id']}/rotate", json={"overlap": "1h"})).json()
        facts = ("user", "team", "models", "name", "expires_at")
        assert [new[fact] for fact in facts] == [made[fact] for fact in facts]
        assert (new["rotated_from"], new["id"] != made["id"]) == (made["id"], True)
        for secret in (made["key"], new["key"]):
            assert (await client.get("/v1/models", headers=bearer(secret))).status_code == 200
        old = (await client.get(f"/v1/admin/keys/{made['id']}")).json()
        assert 3500 < old["expires_at"] - time.time() <= 3600

        assert (await client.delete(f"/v1/admin/keys/{new['id']}")).json()["status"] == "revoked"
        assert (await client.get("/v1/models", headers=bearer(new["key"]))).status_code == 401
        again = await client.post(f"/v1/admin/keys/{new['id']}/rotate")
        assert (again.status_code, "revoked" in again.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "user"),
        ({"user": ""}, "user"),
        ({"user": "a", "expires_in": "soon"}, "expires_in"),
        ({"user": "a", "expires_in": "9999999d"}, "expires_in"),
        ({"user": 5}, "user"),
    ],
)
async def test_a_key_of_nobody_is_refused(client, body, param):
    response = await client.post("/v1/admin/keys", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/v1/admin/keys/key_x", "/v1/admin/keys/key_x/rotate"])
async def test_an_unknown_key_is_not_found(client, path):
    method = "POST" if path.endswith("rotate") else "DELETE"
    assert (await client.request(method, path)).status_code == 404


async def test_another_process_refuses_a_revoked_key_within_a_second(gateway):
    """Two rings over one store are two processes."""
    now = [1000.0]
    secret, name = await add(gateway)
    keys = (await gateway.store.database()).keys
    rings = [KeyRing(gateway.store, lambda: now[0]) for _ in range(2)]
    assert all([await ring.find(secret) for ring in rings])
    await keys.revoke(name, now[0])
    rings[0].forget()
    assert await rings[0].find(secret) is None
    now[0] += 1.0
    assert await rings[1].find(secret) is None


async def test_keys_end_when_they_say(gateway):
    now = [1000.0]
    secret, later = new_secret(), new_secret()
    key = new_key(secret, now[0], user="u", lifetime=100.0)
    keys = (await gateway.store.database()).keys
    await keys.add(key, hashed(secret))
    await keys.rotate(key, rotated(key, later, now[0]), hashed(later), now[0] + 500.0)  # never longer than it had
    ring = KeyRing(gateway.store, lambda: now[0])
    for at, opens in ((1000.0, True), (1099.9, True), (1100.0, False), (1500.0, False)):
        now[0] = at
        assert (await ring.find(secret) is not None) == (await ring.find(later) is not None) == opens


async def test_a_flood_of_wrong_keys_does_not_reach_the_database(gateway):
    asked = 0
    keys = (await gateway.store.database()).keys
    find = keys.find

    async def counting(digest):
        nonlocal asked
        asked += 1
        return await find(digest)

    keys.find = counting
    wrong = new_secret()
    for secret in (*["lw-short"] * 5, *[wrong] * 50, "x" * 10_000):
        assert await gateway.keys.find(secret) is None
    assert asked == 1


@pytest.mark.parametrize("secret", ["none", "", "sk-1234"])
async def test_on_this_machine_no_key_is_needed(client, secret):
    assert (await client.get("/v1/models", headers=bearer(secret))).status_code == 200


async def test_on_this_machine_one_of_ours_still_has_to_be_right(gateway, client):
    secret, _ = await add(gateway, models=["alias"])
    listed = (await client.get("/v1/models", headers=bearer(secret))).json()["data"]
    assert [model["id"] for model in listed] == ["alias"]
    assert (await client.get("/v1/models", headers=bearer(new_secret()))).status_code == 401


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "127.8.9.1:1", "[::1]:8000", "page.localhost"])
@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1:8000"])
async def test_this_machine_reaches_it_by_its_own_names(client, host, origin):
    headers = {"host": host} | ({"origin": origin} if origin else {})
    assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "10.0.0.1"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://[bad"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/nowhere"])
async def test_a_foreign_page_does_not(client, headers, path):
    response = await client.get(path, headers=headers)
    assert response.status_code == 403
    assert "own machine" in response.json()["error"]["message"]


async def test_a_page_of_another_host_may_with_a_key_where_keys_are_required(closed):
    secret, _ = await add(closed)
    async with make_client(closed) as client:
        headers = {"host": "models.example", "origin": "https://app.example"} | bearer(secret)
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"host": "evil.example"}])
def test_web_sockets_are_guarded_too(headers):
    client = TestClient(create_app(make_gateway(FakeEngine())), base_url="http://localhost")
    with (
        pytest.raises(WebSocketDenialResponse) as caught,
        client.websocket_connect("/v1/any", headers=headers),
    ):
        pass
    assert caught.value.status_code == 403


@pytest.mark.parametrize(
    ("host", "own"), [("localhost", True), ("::1", True), ("127.1.2.3", True), ("0.0.0.0", False), ("", False)]
)
def test_addresses_of_this_machine(host, own):
    assert is_loopback(host) == own


async def test_on_this_machine_nothing_is_opened_for_a_key_that_is_none(gateway, client):
    await client.get("/v1/models", headers=bearer("none"))
    assert gateway.store.is_new
    assert isinstance(gateway.store, Store)
