"""What travels between the engine's process and its client: msgpack frames, four bytes of length before each.

Client to engine: its EngineConfig first, then Submit, Abort, Stop. Engine to client: Hello once it is loaded (or
Failed), then one Frame of events for each step and for each change outside a step, and Refused for a request that is
malformed.
"""

from typing import TypeAlias

import msgspec

from lightwell.config import SpeculativeConfig
from lightwell.engine.options import PolicyOptions
from lightwell.engine.request import Request
from lightwell.events import Event
from lightwell.runtimes.block import KVCacheDtype
from lightwell.units import Bytes, Tokens


class EngineConfig(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the engine's process is started with. ``runtime`` is cpu, reference (NumPy) or fake (for tests)."""

    model: str  # path of the checkpoint
    name: str
    kv_blocks: int
    context_tokens: Tokens
    runtime: str = "cpu"
    threads: int | None = None
    max_sequences: int = 64
    max_step_tokens: Tokens = 512
    watermark: float = 0.02
    prefix_cache: bool = True
    pack_cache: bool = True
    pin_threads: bool = False
    kv_cache_dtype: KVCacheDtype = "f16"  # of the CPU runtime
    speculation: SpeculativeConfig | None = None  # its model, if there is one, is the path of a checkpoint
    kv_offload: Bytes = 0  # on disk; 0 for none
    policies: PolicyOptions = PolicyOptions()


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop working for this request and free its blocks; answered with Finished("abort") if it was open."""

    request: str


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the process at once."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine is loaded and takes requests."""

    model: str
    context_tokens: Tokens  # the longest prompt plus answer
    kv_blocks: int
    block_tokens: Tokens
    weight_bytes: Bytes
    workspace_bytes: Bytes
    kv_bytes: Bytes
    details: dict[str, str]
    embedding_dimensions: int = 0  # of the vectors that it makes of prompts


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start; the message says why."""

    message: str


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A Submit that was malformed; the engine did nothing with it."""

    request: str
    message: str


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    events: list[Event]


ToEngine: TypeAlias = EngineConfig | Submit | Abort | Stop
FromEngine: TypeAlias = Hello | Failed | Refused | Frame
