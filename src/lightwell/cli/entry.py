"""The entry point. ``lightwell serve`` with options as they should be starts at once; everything else goes to main.py.

Reading the command line with typer takes as long as loading a small model. The options of serve are the fields of
ServeConfig, which checks their values wherever they come from; so here they are only told apart. Help, and whatever
is not understood here, is typer's.
"""

import sys
from collections.abc import Callable
from typing import Any

from lightwell.errors import LightwellError


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] != ["serve"] or "--help" in sys.argv or not _serve():
        from lightwell.cli.main import main as command_line

        command_line()


def _serve() -> bool:
    """False where the options are not all plain ones. The engine's process is started before they are looked at: both
    import for some tenths of a second, and what reads options is part of that."""
    from lightwell.host.process import spawn_worker

    worker = spawn_worker()
    if (flags := plain_flags(sys.argv[2:])) is None:
        worker.connection.close()  # which ends it
        return False
    from lightwell.cli.serve import serve

    report_errors(lambda: serve(worker, **flags))
    return True


def report_errors(run: Callable[[], None]) -> None:
    """An error that we know is one line on standard error, and exit code 1."""
    try:
        run()
    except LightwellError as error:
        print(f"lightwell: {error.message}", file=sys.stderr)
        sys.exit(1)


def plain_flags(words: list[str]) -> dict[str, Any] | None:
    """The options of serve, values as they were written; None where they are not all plain ones.

    Plain are ``MODEL``, ``--name VALUE``, ``--name=VALUE``, and ``--name`` or ``--no-name`` for a switch.
    """
    from lightwell.config import ServeConfig

    defaults = dict(zip(ServeConfig.__struct_fields__, ServeConfig.__struct_defaults__, strict=True))
    switches = {name for name, default in defaults.items() if isinstance(default, bool)}
    valued = defaults.keys() - switches - {"model"}
    flags: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_") if option.startswith("--") and "_" not in option else ""
        if not word.startswith("-") and "model" not in flags:
            flags["model"] = word
        elif (switch := name.removeprefix("no_")) in switches and not equals:
            flags[switch] = name == switch
        elif name in valued and (equals or not (value := next(rest, "--")).startswith("--")):
            flags.setdefault(name, []).append(value)
        else:
            return None
    several = flags.keys() & {"served_model_name"}
    return {name: given[-1] if name in valued - several else given for name, given in flags.items()}
