"""A Rejected event as the error that its client gets."""

from lightwell.engine.request import Request
from lightwell.errors import ContextLengthExceeded, LightwellError, Overloaded
from lightwell.events import FREE_BLOCKS, Rejected


def rejection(event: Rejected, request: Request | None) -> LightwellError:
    """Overloaded where another time would do, ContextLengthExceeded where none would. ``request``: if still known."""
    if event.limit == FREE_BLOCKS:
        return Overloaded(
            f"The KV cache is full: this request needs room for {event.needed_tokens} tokens, and "
            f"{event.limit_tokens} are free now. Try again in a moment, or lower max_tokens."
        )
    prompt = len(request.tokens) if request else event.needed_tokens
    return ContextLengthExceeded(prompt, event.needed_tokens - prompt, event.limit_tokens, event.limit)
