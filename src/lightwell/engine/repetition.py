"""Repetition loops: an answer that says the same again and again until its bound is cut off.

It ends with "length", as every answer that the server cuts off before the model ended it does, and with the detail
"repetition". Whether it is one depends on the answer's tokens alone, so never on batch, speed or preemption.
"""

from lightwell.engine.policies import Ends
from lightwell.engine.sequence import Ending, Sequence
from lightwell.units import Tokens

LONGEST_CYCLE: Tokens = 64
LOOP_TOKENS: Tokens = 256  # that the cycle has filled: at least four times over
_LOOK_EVERY: Tokens = 32  # looking at every token would be felt


def stopping_repetition(ends: Ends) -> Ends:
    """``ends``, and the end of an answer whose last LOOP_TOKENS tokens repeat a cycle of at most LONGEST_CYCLE."""

    def ending(sequence: Sequence) -> Ending | None:
        return ends(sequence) or (Ending("length", "repetition") if _loops(sequence) else None)

    return ending


def _loops(sequence: Sequence) -> bool:
    written = sequence.output_tokens
    return written >= LOOP_TOKENS and written % _LOOK_EVERY == 0 and repeats(sequence.known[-LOOP_TOKENS:])


def repeats(tokens: list[int]) -> bool:
    """Whether they are one cycle of at most LONGEST_CYCLE tokens, again and again."""
    return any(tokens[cycle:] == tokens[:-cycle] for cycle in range(1, min(LONGEST_CYCLE, len(tokens) - 1) + 1))
