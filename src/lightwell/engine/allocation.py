"""Which KV blocks a request may count on, and what becomes of it when there are none: queue, preempt or reject.

``preempt`` (the default) lets a sequence start when what is known of it fits, and takes blocks away from the least
urgent when all have grown too much. ``queue`` and ``reject`` let it start only when its longest possible answer is sure
to fit beside those of all others, so that nothing is ever taken away; one waits, the other refuses.
"""

from lightwell.engine.policies import Room, SchedulerLimits
from lightwell.engine.sequence import Sequence
from lightwell.units import Tokens


def longest_possible(sequence: Sequence) -> Tokens:
    """Tokens in the KV cache at the end of the longest answer, whose last token is never computed."""
    request = sequence.request
    return len(request.tokens) + max(0, request.max_tokens - 1)


def whole_promise(room: Room, limits: SchedulerLimits) -> bool:
    """Start where the longest possible answer fits. Running ones have their own promises, so no watermark is needed."""
    return room.needed <= room.available


def to_nobody(running: Sequence, head: Sequence) -> bool:
    return False


def unless_begun(sequence: Sequence) -> bool:
    """Refuse a request when it could not start, but none that a client has already seen a part of: an answer that goes
    on after its engine died, or a further choice beside one that may be streaming. These wait."""
    return not (sequence.request.answer or sequence.request.fork_of or sequence.preemptions)
