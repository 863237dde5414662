"""Everything that can go wrong, as typed exceptions.

Each carries what an API answers with: an HTTP status and OpenAI's ``type``, ``code`` and ``param``.
The gateway turns them into the error object in one place; the command line prints ``message``.
"""

from pathlib import Path


class LightwellError(Exception):
    """Base of every error that Lightwell raises on purpose; the message says what to do about it."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(LightwellError):
    """The request is malformed, or a value is out of range."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    """A parameter that is known in this API but not served here; it is never ignored quietly."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together do not fit the context window, or the whole KV cache."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_tokens: int, limit_tokens: int, what: str = "context window") -> None:
        parts = f" ({prompt_tokens} in the prompt and {max_tokens} for the answer)" if max_tokens else ""
        super().__init__(
            f"This request needs {prompt_tokens + max_tokens} tokens{parts}, but the {what} holds {limit_tokens}. "
            f"Shorten the prompt{' or lower max_tokens' if max_tokens else ''}.",
            param="messages",
        )
        self.prompt_tokens, self.max_tokens, self.limit_tokens = prompt_tokens, max_tokens, limit_tokens


class AuthenticationFailed(LightwellError):
    """No key where one is needed, or one that is not valid."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(LightwellError):
    """The caller is known, and may not do this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class PayloadTooLarge(InvalidRequest):
    """The body is longer than what is read."""

    status = 413
    code = "payload_too_large"


class NotFound(LightwellError):
    """No such route or object."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """A model name that this server does not serve, or that the catalog does not know."""

    code = "model_not_found"


class Overloaded(LightwellError):
    """The server cannot take the request now: draining, loading, or too full. ``retry_after``: when it may, in
    seconds."""

    status = 503
    type = "unavailable_error"
    code = "overloaded"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class RateLimited(LightwellError):
    """A limit of requests or tokens is reached. After ``retry_after`` seconds the same request passes, if nobody else
    takes what is free then."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, kind: str, retry_after: float, headers: dict[str, str] | None = None) -> None:
        """``headers``: how much is left of the limits."""
        super().__init__(message)
        self.type, self.retry_after, self.headers = kind, retry_after, headers or {}


class QuotaExceeded(RateLimited):
    """A budget is used up."""

    code = "insufficient_quota"

    def __init__(self, message: str, retry_after: float, headers: dict[str, str] | None = None) -> None:
        super().__init__(message, "insufficient_quota", retry_after, headers)


class EngineDied(LightwellError):
    """The engine's process ended, and the request does not go on in another one."""

    status = 503
    type = "server_error"
    code = "engine_died"


class KillsEngine(EngineDied):
    """Two engines died around this request while they had nothing else to do; it is not tried again."""

    status = 500

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"Request {request_id} was given up: the engine's process died twice while it computed nothing else. "
            "Other requests go on. Do not repeat it as it is: change its prompt or its parameters; "
            "the server's log has the engine's last words."
        )


class CheckpointError(LightwellError):
    """A model file that is damaged, truncated or not supported: names the file and what is wrong in it."""

    code = "bad_checkpoint"

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = Path(path)


class StartupError(LightwellError):
    """The server cannot start as asked: port taken, model missing, too little memory."""

    code = "startup"


class InvariantError(LightwellError):
    """The engine's own books contradict each other: a bug here, never the client's fault."""

    code = "invariant_broken"
