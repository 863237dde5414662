"""What a client asked of the engine. Never changes after it was made; the gateway writes it, the wire carries it."""

from typing import Literal, TypeAlias

import msgspec

from lightwell.sampling.params import SamplingParams
from lightwell.units import Tokens

Pooling: TypeAlias = Literal["", "last", "mean"]


class Request(msgspec.Struct, frozen=True, array_like=True):
    """``tokens`` are the prompt's ids; ``max_tokens`` >= 1 bounds the answer; a token in ``stop_tokens`` ends it
    (and is the answer's last token, which the gateway does not show). Lower ``priority`` runs first, as in vLLM.
    ``salt`` keeps prefix caches of different tenants apart.

    ``answer`` are tokens of the answer that were written before, by an engine that died: it goes on after them, and
    they count as output. Before ``min_tokens`` of output no stop token is drawn. ``grammar`` constrains the answer (a
    Lark grammar as llguidance reads it; empty for none). ``fork_of`` is the id of an earlier request with the same
    prompt, whose blocks this one shares: the other choices of one API request. ``prompt_logprobs`` asks for the
    prompt's own log-probabilities, k >= 0 for those of the k best beside each token's (PromptScored); with them
    ``max_tokens`` may be 0.

    ``pooling`` asks for no answer but for one vector (Embedded), made of the final hidden states of the prompt's last
    token or of all its tokens; then ``max_tokens`` is 0.
    """

    id: str
    tokens: list[int]
    sampling: SamplingParams
    max_tokens: Tokens
    stop_tokens: frozenset[int] = frozenset()
    priority: int = 0
    salt: str = ""
    answer: list[int] = []
    min_tokens: Tokens = 0
    grammar: str = ""
    fork_of: str = ""
    prompt_logprobs: int | None = None
    pooling: Pooling = ""
