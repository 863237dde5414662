"""A real server with keys required, for all clients, and a key that may have one request at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.system.test_server import server

ADMIN = "an-admin-key-for-tests"


@dataclass
class Served:
    address: str
    key: str  # an administrator's
    one_at_a_time: str  # a key


@pytest.fixture(scope="session")
def served(smollm2, tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    store = f"--store={folder / 'store.db'}"
    flags = ("--served-model-name", "smollm2", "--require-keys", "--api-key", ADMIN, store)
    with server(str(smollm2), *flags, log=folder / "log") as (address, _):
        headers = {"authorization": f"Bearer {ADMIN}"}
        with httpx.Client(base_url=address, headers=headers) as admin:
            made = admin.post("/v1/admin/keys", json={"user": "ann"}).raise_for_status().json()
            limit = {"concurrent_requests": 1}
            admin.put(f"/v1/admin/limits/key:{made['id']}", json=limit).raise_for_status()
            yield Served(address, ADMIN, made["key"])
