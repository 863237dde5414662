"""A gateway over a scripted engine, and a client of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from lightwell.gateway.gateway import Gateway
from tests.gateway.fake_engine import FakeEngine, make_client, make_gateway


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def gateway(engine: FakeEngine) -> AsyncIterator[Gateway]:
    gateway = make_gateway(engine)
    yield gateway
    await gateway.store.close()


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(gateway) as client:
        yield client
