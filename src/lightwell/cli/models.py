"""``lightwell pull`` and ``lightwell models``."""

from lightwell.checkpoints.catalog import list_models
from lightwell.checkpoints.catalog import pull as pull_model
from lightwell.cli.table import print_table
from lightwell.units import format_bytes


def pull(name: str) -> None:
    """Fetch and verify; print where the file lies."""
    print(pull_model(name))


def models() -> None:
    """A table of the catalog."""
    rows = [("NAME", "ALSO", "SIZE", "LICENCE", "HERE")]
    for model, path in list_models():
        names = ", ".join(model.aliases)
        rows.append((model.name, names, format_bytes(model.size), model.licence, str(path or "not pulled")))
    print_table(rows)
