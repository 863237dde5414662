"""ServeConfig: how one server is set up. Command-line flags win over LIGHTWELL_* variables, these over lightwell.toml.

Names follow vLLM's flags where it has the same thing. A name that nobody knows is an error in every source but the
environment, where other programs of this project read their own LIGHTWELL_* variables.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from lightwell.errors import StartupError
from lightwell.units import Bytes, Seconds, Tokens, parse_bytes

CONFIG_FILE = Path("lightwell.toml")


def _size(value: object) -> object:
    if value == "auto":
        return None
    return parse_bytes(value) if isinstance(value, str) else value


def _names(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


class ServeConfig(BaseSettings):
    """Raises pydantic's errors; use ``load`` for one clear StartupError instead."""

    model_config = SettingsConfigDict(env_prefix="LIGHTWELL_", extra="forbid", frozen=True, toml_file=CONFIG_FILE)

    model: str = "smollm2"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: any free port
    # What clients may call the model; by default the name it was started with. Commas separate names in a variable.
    served_model_name: Annotated[list[str], NoDecode, BeforeValidator(_names)] = []
    chat_template: Path | None = None
    max_model_len: Annotated[Tokens, Field(ge=1)] | None = None  # by default the model's own window
    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    max_num_batched_tokens: Annotated[Tokens, Field(ge=1)] = 512
    # A size such as 2GiB; "auto" (None here) lets the server choose.
    kv_cache_memory: Annotated[Annotated[Bytes, Field(ge=1)] | None, BeforeValidator(_size)] = None
    threads: Annotated[int, Field(ge=1)] | None = None  # by default the physical cores
    enable_prefix_caching: bool = True
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.02  # share of KV blocks kept free when a request is admitted
    shutdown_timeout_seconds: Annotated[Seconds, Field(ge=0)] = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *rest: Any, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, sources["env_settings"], TomlConfigSettingsSource(settings_cls)

    @classmethod
    def load(cls, **flags: Any) -> "ServeConfig":
        """The settings with these flags given (None means not given). Raises StartupError naming what is wrong."""
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            raise StartupError("Configuration: " + "; ".join(map(_complaint, error.errors()))) from None
        except tomllib.TOMLDecodeError as error:
            raise StartupError(f"Configuration: {CONFIG_FILE} is not TOML: {error}") from None
        except SettingsError as error:  # a variable that cannot be read at all
            raise StartupError(f"Configuration: {error}") from None


def _complaint(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"] if isinstance(part, int) or part.isidentifier())
    return f"{name}: {error['msg']} (got {error['input']!r})"
