"""ServeConfig: how one server is set up. Command-line flags win over LIGHTWELL_* variables, these over lightwell.toml.

Names follow vLLM's flags where it has the same thing. A name that nobody knows is an error; in the environment, where
other programs have LIGHTWELL_* variables too, one that is almost a setting's.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from lightwell.errors import StartupError
from lightwell.units import Bytes, Seconds, Tokens, parse_bytes, parse_seconds

CONFIG_FILE = Path("lightwell.toml")
DATA_FOLDER = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "lightwell"
_PREFIX = "LIGHTWELL_"

# What --objective stands for, where nothing else is said; "balanced" is the defaults.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "latency": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "target_itl": "50ms", "target_ttft": "1s"},
    "throughput": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
}


class SpeculativeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How next tokens are guessed: looked up in the sequence itself (ngram), or written by a smaller ``model`` with the
    same tokenizer (draft_model). Field names and methods are vLLM's."""

    method: Literal["ngram", "draft_model"] = "ngram"
    model: str | None = None
    num_speculative_tokens: Annotated[Tokens, Meta(ge=1, le=32)] = (
        8  # at most; how many depends on how often they are right
    )

    def __post_init__(self) -> None:
        if (self.method == "draft_model") != (self.model is not None):
            raise ValueError("draft_model needs a model, and ngram takes none")


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Made by ``load``, which checks every value."""

    model: str = "smollm2"
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000  # 0: any free one
    # What clients may call the model; by default the name it was started with. Commas separate names in a variable.
    served_model_name: list[str] = []
    chat_template: Path | None = None
    # How the model writes tool calls; by default found from its chat template.
    tool_call_parser: Literal["hermes", "llama3", "mistral", "gemma"] | None = None
    max_model_len: Annotated[Tokens, Meta(ge=1)] | None = None  # by default the model's own window
    max_num_seqs: Annotated[int, Meta(ge=1)] = 64
    max_num_batched_tokens: Annotated[Tokens, Meta(ge=1)] = 512
    # A size such as 2GiB; "auto" (None here) lets the server choose.
    kv_cache_memory: Annotated[Bytes, Meta(ge=1)] | None = None
    kv_cache_dtype: Literal["f16", "int8"] = "f16"  # what keys and values are kept in
    kv_offload: Annotated[Bytes, Meta(ge=0)] = 0  # a size such as 4GiB: blocks that leave the KV cache go to disk
    threads: Annotated[int, Meta(ge=1)] | None = None  # by default the physical cores
    pin_threads: bool = False  # keep each on a physical core of its own
    enable_prefix_caching: bool = True
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.02  # share of KV blocks kept free when a request is admitted
    speculative_config: SpeculativeConfig | None = None  # JSON; by default nothing is guessed
    when_full: Literal["queue", "preempt", "reject"] = "preempt"  # what to do when there are no KV blocks
    batching: Literal["continuous", "static"] = "continuous"
    kv_allocation: Literal["paged", "reserved"] = "paged"
    objective: Literal["latency", "balanced", "throughput"] = "balanced"  # values for what is not given: OBJECTIVES
    # Durations such as 50ms or 1s.
    target_itl: Annotated[Seconds, Meta(gt=0)] | None = None
    target_ttft: Annotated[Seconds, Meta(gt=0)] | None = None
    long_prefill_threshold: Annotated[Tokens, Meta(ge=1)] | None = None
    max_prompt_tokens: Annotated[Tokens, Meta(ge=1)] | None = None
    default_max_tokens: Annotated[Tokens, Meta(ge=1)] | None = None  # of a chat; by default the room left
    max_output_tokens: Annotated[Tokens, Meta(ge=1)] | None = None
    stop_repetition: bool = False
    # Where keys, usage, files and stored answers are kept: a SQLite file or postgresql://user@host/name.
    store: str = str(DATA_FOLDER / "lightwell.db")
    require_keys: bool = False  # also of callers on this machine; of all others a key is always required
    api_key: str | None = None  # one more key, of an administrator
    redis_url: str | None = None  # where several gateways count limits together
    max_queue: Annotated[int, Meta(ge=0)] = 1000  # requests that may wait for the engine; more are refused
    stream_chunk_tokens: Annotated[Tokens, Meta(ge=1, le=1024)] = 8  # at most in one event, where many streams are open
    stream_chunk_ms: Annotated[float, Meta(ge=0, le=10_000)] = 100  # how long a token waits for others, at most
    pack_cache: bool = True  # keep packed weights on disk for the next start
    shutdown_timeout_seconds: Annotated[Seconds, Meta(ge=0)] = 30.0
    step_timeout_seconds: Annotated[Seconds, Meta(ge=0)] = (
        300.0  # an engine whose step takes longer is restarted; 0: never
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def load(cls, **flags: Any) -> "ServeConfig":
        """The settings with these flags given (None means not given). Raises StartupError naming what is wrong."""
        return cls(**{name: setting.value for name, setting in settings(**flags).items()})


@dataclass(frozen=True)
class Setting:
    """``source``: where the value was given, as people would find it again."""

    value: Any
    source: str


_FIELDS = {field.name: field for field in msgspec.structs.fields(ServeConfig)}
_ELSEWHERE = ("CACHE", "CPU_ISA")  # variables that are read where they are needed, by programs without a configuration


def settings(**flags: Any) -> dict[str, Setting]:
    """Every setting by its name, checked, and where it comes from. Raises StartupError naming all that is wrong."""
    given = _file() | _variables() | _flags(flags)
    objective = str(given["objective"].value) if "objective" in given else ""
    preset = {name: Setting(value, f"objective {objective}") for name, value in OBJECTIVES.get(objective, {}).items()}
    found = {name: Setting(_default(field), "default") for name, field in _FIELDS.items()}
    complaints = [_unknown(name) for name in _misspelt_variables()]
    for name, setting in (preset | given).items():
        try:
            found[name] = Setting(_read(name, setting.value), setting.source)
        except ValueError as error:
            complaints.append(f"{name}: {error.args[0]} (got {setting.value!r}, {setting.source})")
    if complaints:
        raise StartupError("Configuration: " + "; ".join(complaints))
    return found


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _file() -> dict[str, Setting]:
    if not CONFIG_FILE.exists():
        return {}
    try:
        values = tomllib.loads(CONFIG_FILE.read_text("utf-8"))
    except ValueError as error:  # not TOML, or not even UTF-8
        raise StartupError(f"Configuration: {CONFIG_FILE} is not TOML: {error}") from None
    except OSError as error:
        raise StartupError(f"Configuration: {CONFIG_FILE} cannot be read: {error.strerror}") from None
    return {name: Setting(value, str(CONFIG_FILE)) for name, value in values.items()}


def _variables() -> dict[str, Setting]:
    names = {name: _PREFIX + name.upper() for name in _FIELDS}
    return {name: Setting(os.environ[key], key) for name, key in names.items() if key in os.environ}


def _flags(flags: Mapping[str, Any]) -> dict[str, Setting]:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: Setting(value, "--" + name.replace("_", "-")) for name, value in given.items()}


def _misspelt_variables() -> list[str]:
    """Those that are almost a setting's. Others may be anybody's: Kubernetes makes some for services."""
    known = {_PREFIX + name for name in (*map(str.upper, _FIELDS), *_ELSEWHERE)}
    mine = [key for key in os.environ if key.startswith(_PREFIX) and key not in known]
    return [key for key in mine if get_close_matches(key.removeprefix(_PREFIX).lower(), _FIELDS, 1, 0.8)]


def _unknown(variable: str) -> str:
    return f"{variable}: there is no such option{_nearest(variable, [_PREFIX + name.upper() for name in _FIELDS])}"


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, known, 1)
    return f", did you mean {nearest[0]}?" if nearest else ""


def _names_within(kind: Any) -> list[str]:
    """The keys of the tables that a setting of this type has, at any depth."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [field.name for field in fields] + [name for field in fields for name in _names_within(field.type)]
    return [name for part in get_args(kind) for name in _names_within(part)]


def _read(name: str, value: object) -> object:
    """The value of a setting, numbers and switches also from text. Raises ValueError."""
    if name not in _FIELDS:
        raise ValueError("there is no such option" + _nearest(name, _FIELDS))
    if isinstance(value, str):
        match name:
            case "served_model_name":
                value = value.split(",")
            case "kv_cache_memory":
                value = None if value == "auto" else parse_bytes(value)
            case "speculative_config":
                value = msgspec.json.decode(value)
            case "kv_offload":
                value = parse_bytes(value)
            case "target_itl" | "target_ttft":
                value = parse_seconds(value)
    kind = _FIELDS[name].type
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=lambda kind, text: kind(text))
    except msgspec.ValidationError as error:
        unknown = re.search("unknown field `(.*?)`", str(error))
        raise ValueError(str(error) + (_nearest(unknown[1], _names_within(kind)) if unknown else "")) from None
