"""``lightwell instructions``: what chats of a key, a team or a model begin with."""

from lightwell.cli.stored import with_database
from lightwell.cli.table import print_table
from lightwell.errors import NotFound
from lightwell.gateway.subjects import checked_subject


def put(subject: str, text: str) -> None:
    checked_subject(subject)
    with_database(lambda database: database.instructions.put(subject, text))
    print(f"Chats of {subject} begin with these {len(text)} characters.")


def listed() -> None:
    texts = with_database(lambda database: database.instructions.all())
    print_table(
        [("SUBJECT", "INSTRUCTIONS"), *((subject, " ".join(texts[subject].split())) for subject in sorted(texts))]
    )


def clear(subject: str) -> None:
    """Raises NotFound."""
    if not with_database(lambda database: database.instructions.delete(checked_subject(subject))):
        raise NotFound(f"There are no instructions for {subject!r}.")
    print(f"Chats of {subject} begin with nothing of ours.")
