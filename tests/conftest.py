"""What tests share: the data folder beside the checkout where there is one, and the real models through the catalog."""

from pathlib import Path

import pytest
from hypothesis import settings

# Tests run beside others on a busy machine: how long an example takes says nothing.
settings.register_profile("lightwell", deadline=None)
settings.load_profile("lightwell")
settings.register_profile("few", max_examples=30)  # of the 100 that are the default: where each takes its time

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public test data that stands beside this checkout in CI; a stranger's clone has none."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder beside this checkout: tests on its corpora are left out")
    return SHARED


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's GGUF file, pulled into the cache if it is not there yet."""
    from lightwell.checkpoints.catalog import pull

    return pull("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    from lightwell.checkpoints.catalog import pull

    return pull("gemma3:270m")
