"""Gateway: everything that a handler needs, made once by whoever starts the server and passed to ``create_app``."""

import hashlib
import time
from dataclasses import dataclass, field
from functools import cached_property

import lightwell
from lightwell.errors import ModelNotFound, Overloaded
from lightwell.gateway.cached import CachedTokens
from lightwell.gateway.drain import Drain
from lightwell.gateway.grammar_checker import GrammarChecker
from lightwell.gateway.lengths import LengthLimits
from lightwell.gateway.tools.dialect import Dialect, find_dialect
from lightwell.host.client import EngineClient
from lightwell.text.chat import ChatTemplate, NoChatTemplate
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Seconds, Tokens
from lightwell.xray.metrics import Metrics

_STALLED_AFTER_SECONDS = 30.0  # far longer than any step should take


@dataclass
class Gateway:
    """``model_names``: what clients may call the model; the first is its own. No template: the model has no chat.
    ``tool_call_parser``: the name of one, or None to find the one that fits the template."""

    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model_names: list[str]
    tool_call_parser: str | None = None
    stalled_after: Seconds = _STALLED_AFTER_SECONDS
    lengths: LengthLimits = field(default_factory=LengthLimits)
    drain: Drain = field(default_factory=Drain)
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: Metrics = field(init=False)
    cached: CachedTokens = field(init=False)
    grammars: GrammarChecker = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.model_names[0])
        self.cached = CachedTokens()
        self.grammars = GrammarChecker(self.tokenizer)
        self.engine.subscribe(self.metrics.read)
        self.engine.subscribe(self.cached.read)

    def admit(self) -> None:
        """Raises Overloaded where nothing can be generated now. A restarting engine is waited for: it takes seconds."""
        self.drain.admit()
        if (phase := self.engine.status.phase) not in ("ready", "restarting"):
            raise Overloaded(f"The engine is {phase}. Try again in a moment.")

    def known_model(self, name: str | None) -> str:
        """The model name to answer with; none asked for means the only model. Raises ModelNotFound."""
        if name is None or name in self.model_names:
            return name or self.model_names[0]
        served = ", ".join(self.model_names)
        raise ModelNotFound(f"The model {name!r} is not served here; this server has: {served}.", param="model")

    @cached_property
    def dialect(self) -> Dialect:
        """How this model calls tools, found by the first chat. Raises NoChatTemplate."""
        if self.template is None:
            raise NoChatTemplate
        return find_dialect(self.tokenizer, self.template, self.tool_call_parser)

    def window(self) -> tuple[Tokens, str]:
        """The most tokens of prompt and answer together, and what sets that limit. Raises Overloaded while loading."""
        hello = self.engine.hello
        cache = hello.kv_blocks * hello.block_tokens
        return (hello.context_tokens, "context window") if hello.context_tokens <= cache else (cache, "KV cache")

    def fingerprint(self) -> str:
        """Changes whenever the same request could give other bytes: model, weights, instruction set, version."""
        hello = self.engine.hello
        facts = repr((lightwell.__version__, hello.model, hello.weight_bytes, sorted(hello.details.items())))
        return f"fp_{hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()}"
