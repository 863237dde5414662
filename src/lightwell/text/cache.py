"""Built tokenizers on disk: merging a large SentencePiece vocabulary takes longer than loading the result.

A cache file is a line with the SHA-256 of the rest, then a tokenizer.json. Writers put a whole file in place at once,
so readers never see half of one; a file that does not match its line is built again.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """$LIGHTWELL_CACHE/tokenizers, or ~/.cache/lightwell/tokenizers."""
    return Path(os.environ.get("LIGHTWELL_CACHE") or "~/.cache/lightwell").expanduser() / "tokenizers"


def load_or_build(key: str, build: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer kept under ``key``, or a new one, which is then kept. A cache that fails costs only time."""
    path = cache_folder() / f"{key}.json"
    if (kept := _read(path)) is not None:
        return kept
    tokenizer = build()
    try:
        _write(path, tokenizer.to_str().encode())
    except OSError as error:
        _log.warning("the built tokenizer could not be kept in %s: %s", path, error)
    return tokenizer


def _read(path: Path) -> Tokenizer | None:
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest().encode() != digest:
        _log.warning("%s is damaged: building that tokenizer again", path)
        return None
    return Tokenizer.from_buffer(content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
