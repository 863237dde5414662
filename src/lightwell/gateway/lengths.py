"""LengthLimits: what the operator allows of prompts and answers, inside the context window that bounds both anyway."""

from dataclasses import dataclass

from lightwell.errors import InvalidRequest
from lightwell.units import Tokens


@dataclass(frozen=True)
class LengthLimits:
    """``default_output`` bounds chat answers that ask for no length, ``max_output`` all. None: no such limit."""

    max_prompt: Tokens | None = None
    default_output: Tokens | None = None
    max_output: Tokens | None = None

    def check(self, prompt_tokens: Tokens, asked: Tokens | None, prompt_param: str) -> None:
        """Raises InvalidRequest, with both numbers, for a prompt or an explicit max_tokens above the limit."""
        if self.max_prompt is not None and prompt_tokens > self.max_prompt:
            raise InvalidRequest(
                f"The prompt has {prompt_tokens} tokens, but this server takes at most {self.max_prompt}. Shorten it.",
                param=prompt_param,
            )
        if self.max_output is not None and asked is not None and asked > self.max_output:
            raise InvalidRequest(
                f"'max_tokens' is {asked}, but answers of this server have at most {self.max_output} tokens. Lower it.",
                param="max_tokens",
            )

    def default(self, usual: Tokens | None) -> Tokens | None:
        """The bound of an answer that asks for none. ``usual``: the endpoint's own, None for the room left."""
        bounds = [self.default_output if usual is None else usual, self.max_output]
        return min([bound for bound in bounds if bound is not None], default=None)
