"""How much of a prompt was cached, as the usage of an answer says it: all of it, and nothing twice."""

from lightwell.events import Admitted, Died, Preempted, Reused
from lightwell.gateway.cached import CachedTokens


def test_blocks_and_parts_of_blocks_count_and_what_is_computed_again_does_not():
    cached = CachedTokens()
    with cached.watch(["a", "b", "c"]):
        cached.read([Admitted(0.0, name, 32, 0.1, False) for name in ("a", "b", "c", "other")])
        cached.read([Reused(0.1, "a", 32, 20), Reused(0.1, "a", 52, 5), Reused(0.1, "other", 32, 9)])
        cached.read([Preempted(0.2, "b", 2, 40), Admitted(0.3, "b", 40, 0.1, True), Reused(0.4, "b", 40, 10)])
        assert [cached.of(name) for name in "abc"] == [57, 32, 32]
        cached.read([Died(0.5, "killed", 3), Reused(0.6, "c", 32, 8)])
        assert cached.of("c") == 32
    with cached.watch(["b"]):
        cached.read([Admitted(1.0, "b", 0, 0.1, False), Reused(1.1, "b", 0, 7)])
        assert cached.of("b") == 7
