"""Finding control tokens in a text: the longest name at the leftmost place wins, as in the tokenizers library."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from lightwell.text.vocabulary import ControlToken

_SPACES = re.compile(r"\s*")


class SpecialSplitter:
    """Cuts texts at the names of control tokens."""

    def __init__(self, control: Iterable[ControlToken]) -> None:
        self._tokens = {token.text: token for token in control if token.text}
        self._pattern = re.compile(_longest_of(sorted(self._tokens)) or r"(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the text in order: token ids where names of control tokens stood, and the strings between them."""
        position = 0
        while match := self._pattern.search(text, position):
            token = self._tokens[match[0]]
            before = text[position : match.start()]
            if before := before.rstrip() if token.lstrip else before:
                yield before
            yield token.id
            position = _end_of_spaces(text, match.end()) if token.rstrip else match.end()
        if position < len(text):
            yield text[position:]

    def replace(self, text: str, replacement: Callable[[str], str]) -> str:
        """The text with the name of every control token replaced by what ``replacement`` makes of it."""
        return self._pattern.sub(lambda match: replacement(match[0]), text)


def _end_of_spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return match.end() if match else position


def _longest_of(words: list[str]) -> str:
    """A regular expression for the longest of the sorted words at a place: a trie, so thousands of words stay fast."""
    branches: list[str] = [
        re.escape(first) + _longest_of([word[1:] for word in group])
        for first, group in groupby((word for word in words if word), key=lambda word: word[0])
    ]
    if len(branches) == 1 and "" not in words:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in words else ''}" if branches else ""
