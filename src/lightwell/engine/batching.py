"""Static batching, for comparison and teaching: collect what waits, run it until all have finished, then the next."""

from lightwell.engine.sequence import Sequence


def static(sequence: Sequence, batch_stands: bool) -> bool:
    """Join only where no batch is running; one that was preempted belongs to the batch and comes back to it."""
    return not batch_stands or sequence.preemptions > 0
