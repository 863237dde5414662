"""A refusal for now and a refusal for good are different errors."""

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, Overloaded
from lightwell.events import FREE_BLOCKS, Rejected
from lightwell.host.rejection import rejection
from lightwell.sampling.params import SamplingParams

REQUEST = Request("r", [1] * 30, SamplingParams(), 100)


def test_no_free_blocks_is_overload_with_both_numbers_and_the_advice_to_retry():
    error = rejection(Rejected(0.0, "r", 160, 32, FREE_BLOCKS), REQUEST)
    assert isinstance(error, Overloaded)
    assert (error.status, error.code) == (503, "overloaded")
    assert "160" in error.message
    assert "32" in error.message
    assert "Try again" in error.message


def test_what_never_fits_is_the_clients_to_change():
    for request in (REQUEST, None):
        error = rejection(Rejected(0.0, "r", 130, 128, "KV cache"), request)
        assert isinstance(error, ContextLengthExceeded)
        assert error.limit_tokens == 128
