"""How one request wants its tokens chosen."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """Scores are edited first (penalties, then bias), then scaled by the temperature; then top-k, top-p and min-p
    filter, each on what the one before has left; then one draw.

    ``temperature`` 0 is greedy: the highest score, the lowest id among equals. ``top_k`` 0, ``top_p`` 1 and
    ``min_p`` 0 switch a filter off. ``seed`` is always set: where the client gave none the gateway draws one.
    ``logprobs`` None asks for none, k >= 0 for the chosen token's and those of the k best.

    ``repetition_penalty`` divides the positive and multiplies the negative scores of tokens that the prompt or the
    answer holds (Keskar et al., "CTRL", 2019). ``frequency_penalty`` is subtracted for each time that the answer holds
    a token, ``presence_penalty`` once if it does (OpenAI's definition). ``logit_bias`` is added, by token id.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
