"""The load bench: what its client understands, and a small round of it against both servers."""

import pytest

from bench.load.__main__ import measure
from bench.load.client import understood

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def event(text: str) -> bytes:
    return b'data: {"id": "cmpl-1", "choices": [{"text": "%s"}]}\n\n' % text.encode()


@pytest.mark.parametrize("cut", [1, 60, 70, 120, 200])
def test_an_event_arrives_with_its_last_byte(cut):
    whole = HEAD + chunk(event("a")) + chunk(event("b") + event("c")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    read = understood([(whole[:cut], 1.0), (whole[cut:], 2.0)])
    assert read.text == "abc"
    assert read.done
    first_end = len(HEAD) + len(chunk(event("a")))
    assert read.pieces[0][1] == (1.0 if cut >= first_end else 2.0)
    assert read.pieces[2][1] == 2.0


def test_what_is_not_an_answer_is_told():
    read = understood([(b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy", 1.0)])
    assert "503" in read.error
    assert not read.done


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["starlette", "gateway"])
async def test_a_small_round_loses_nothing(kind):
    found = await measure(kind, streams=8, rate=200.0, seconds=4.0)
    assert not found.faults
    assert found.tokens == 8 * 100
