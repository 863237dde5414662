"""``lightwell cache``: the packed weights that are kept on disk."""

import time

from lightwell.cli.table import print_table
from lightwell.errors import StartupError
from lightwell.runtimes.cpu import pack_cache
from lightwell.units import format_bytes


def cache(clear: bool) -> None:
    """List them, or remove them all. Raises StartupError where they cannot be removed."""
    if not clear:
        rows = [("MODEL", "SIZE", "LAST USED", "FILE")]
        for pack in pack_cache.kept():
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(pack.used))
            rows.append((pack.model or "(unusable)", format_bytes(pack.bytes), used, str(pack.path)))
        print_table(rows)
        return
    try:
        pack_cache.clear()
    except OSError as error:
        raise StartupError(f"{error.filename} cannot be removed: {error.strerror}") from None
