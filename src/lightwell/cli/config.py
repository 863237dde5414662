"""``lightwell config check``: every setting of the server, what it is, where that was said, and what it means."""

import re
from typing import Any, get_type_hints

import msgspec

from lightwell.cli.table import print_table
from lightwell.config import CONFIG_FILE, settings

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")  # of an address


def check(json: bool) -> None:
    """Raises StartupError, which names all that is wrong, and what was meant where that can be guessed."""
    meanings = _meanings()
    rows = [(name, _shown(name, each.value), each.source, meanings[name]) for name, each in settings().items()]
    if json:
        for row in rows:
            print(msgspec.json.encode(dict(zip(("name", "value", "source", "meaning"), row, strict=True))).decode())
        return
    print_table([("SETTING", "VALUE", "FROM", "MEANING"), *rows])
    print(f"\nAll is well. {CONFIG_FILE.absolute()} {'was read.' if CONFIG_FILE.exists() else 'is not there.'}")


def _meanings() -> dict[str, str]:
    """What --help says."""
    from lightwell.cli.main import serve

    hints = get_type_hints(serve, include_extras=True)
    return {name: hint.__metadata__[0].help for name, hint in hints.items() if name != "return"}


def _shown(name: str, value: Any) -> str:
    """As it would be written in the file; no secret."""
    if value is None:
        return "-"
    if name.endswith("_key"):
        return "***"
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return _PASSWORD.sub(r"\1:***@", text.strip('"'))
