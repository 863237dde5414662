"""How one request wants its tokens chosen."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """Temperature first, then top-k, top-p and min-p, each on what the one before has left; then one draw.

    ``temperature`` 0 is greedy: the highest score, the lowest id among equals. ``top_k`` 0, ``top_p`` 1 and
    ``min_p`` 0 switch a filter off. ``seed`` is always set: where the client gave none the gateway draws one.
    ``logprobs`` None asks for none, k >= 0 for the chosen token's and those of the k best.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    logprobs: int | None = None
