"""ServedModel: everything that a request to one model needs, made once by whoever starts the server."""

import hashlib
import time
from dataclasses import dataclass, field
from functools import cached_property

import lightwell
from lightwell.errors import Overloaded
from lightwell.gateway.cached import CachedTokens
from lightwell.gateway.grammar_checker import GrammarChecker
from lightwell.gateway.lengths import LengthLimits
from lightwell.gateway.produced import Produced
from lightwell.gateway.tools.dialect import Dialect, find_dialect
from lightwell.host.client import EngineClient
from lightwell.text.chat import ChatTemplate, NoChatTemplate
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Tokens
from lightwell.xray.metrics import Metrics


@dataclass
class ServedModel:
    """``names``: what clients may call it; the first is its own. No template: it has no chat. ``tool_call_parser``: the
    name of one, or None to find the one that fits the template."""

    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: list[str]
    tool_call_parser: str | None = None
    lengths: LengthLimits = field(default_factory=LengthLimits)
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: Metrics = field(init=False)
    cached: CachedTokens = field(init=False)
    produced: Produced = field(init=False)
    grammars: GrammarChecker = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.names[0])
        self.cached = CachedTokens()
        self.produced = Produced()
        self.grammars = GrammarChecker(self.tokenizer)
        self.engine.subscribe(self.metrics.read)
        self.engine.subscribe(self.cached.read)
        self.engine.subscribe(self.produced.read)

    def check_ready(self) -> None:
        """Raises Overloaded where nothing can be generated now. A restarting engine is waited for: it takes seconds."""
        if (phase := self.engine.status.phase) not in ("ready", "restarting"):
            raise Overloaded(f"The engine is {phase}. Try again in a moment.")

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
