from hypothesis import given
from hypothesis import strategies as st

from lightwell.engine.request import Request
from lightwell.events import Finished, Sampled, TokenLogprobs
from lightwell.host.messages import Abort, Frame, FromEngine, Hello, Stop, Submit, ToEngine
from lightwell.host.wire import Unpacker, pack
from lightwell.sampling.params import SamplingParams

_REQUEST = Request("r", [1, 2, 3], SamplingParams(seed=2**64 - 1), 5, frozenset({2}), priority=-1, salt="s")
_TO_ENGINE = [Submit(_REQUEST), Abort("r"), Stop()]
_FROM_ENGINE = [
    Hello("m", 512, 16, 32, 1, 2, 3, {"threads": "2"}),
    Frame([Sampled(0.5, "r", 7, TokenLogprobs(-0.1, [7, 8], [-0.1, -2.0])), Finished(0.6, "r", "stop", 3, 0, 1)]),
]


@given(st.lists(st.sampled_from(_TO_ENGINE)), st.data())
def test_messages_survive_any_split_of_the_bytes(messages, data):
    stream = b"".join(map(pack, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    unpacker: Unpacker[ToEngine] = Unpacker(ToEngine)
    received = [m for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for m in unpacker.feed(stream[a:b])]
    assert received == messages


def test_events_travel_as_they_are():
    unpacker: Unpacker[FromEngine] = Unpacker(FromEngine)
    assert list(unpacker.feed(b"".join(map(pack, _FROM_ENGINE)))) == _FROM_ENGINE
