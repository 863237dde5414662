"""What a client asked of the engine. Never changes after it was made; the gateway writes it, the wire carries it."""

import msgspec

from lightwell.sampling.params import SamplingParams
from lightwell.units import Tokens


class Request(msgspec.Struct, frozen=True, array_like=True):
    """``tokens`` are the prompt's ids; ``max_tokens`` >= 1 bounds the answer; a token in ``stop_tokens`` ends it
    (and is the answer's last token, which the gateway does not show). Lower ``priority`` runs first, as in vLLM.
    ``salt`` keeps prefix caches of different tenants apart.
    """

    id: str
    tokens: list[int]
    sampling: SamplingParams
    max_tokens: Tokens
    stop_tokens: frozenset[int] = frozenset()
    priority: int = 0
    salt: str = ""
