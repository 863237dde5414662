"""Subjects: whom an operator's rule is for, written ``key:ID``, ``team:NAME`` or ``model:NAME``."""

from lightwell.errors import InvalidRequest

_KINDS = ("key", "team", "model")


def checked_subject(text: str) -> str:
    """The text itself. Raises InvalidRequest where it names nobody."""
    kind, _, name = text.partition(":")
    if kind not in _KINDS or not name:
        raise InvalidRequest(f"{text!r} is no subject: give key:ID, team:NAME or model:NAME.", param="subject")
    return text
