"""What is looked for in the text of many files.

Python finds a word, or a pattern that begins with one, fifty times faster than one of several words, or a pattern that
begins with what may stand before it: in 0.3 and 0.9 instead of 45 ns a character.
"""

from __future__ import annotations

import re
from typing import AnyStr, Generic

_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # of a pattern
_ESCAPED = re.compile(r"\\(\W)")
_BOUND = re.compile(r"^\\b(\w+)(?![\w?*+{])")
_SPECIAL = frozenset("\\.^$*+?{}[]|()")


class Search(Generic[AnyStr]):
    """Whether a text has one of the alternatives of a pattern in it, which are looked for one after the other."""

    def __init__(self, pattern: AnyStr) -> None:
        self._words: list[AnyStr] = []
        self._patterns: list[AnyStr] = []
        if isinstance(pattern, str):
            decoded = pattern
        else:
            decoded = pattern.decode()
        for text in _alternatives(decoded):
            is_word = _SPECIAL.isdisjoint(_ESCAPED.sub("", text))
            # `\bword` as `word(?<!\wword)`, which begins with a letter.
            if is_word:
                found = _ESCAPED.sub(r"\1", text)
            else:
                found = _BOUND.sub(r"\1(?<!\\w\1)", text)
            if isinstance(pattern, str):
                made = found
            else:
                made = found.encode()
            if is_word:
                self._words.append(made)
            else:
                self._patterns.append(made)

    def __call__(self, text: AnyStr) -> bool:
        """Whether anything is found."""
        return any(word in text for word in self._words) or any(
            re.search(pattern, text) for pattern in self._patterns
        )


def _alternatives(pattern: str) -> list[str]:
    """`a` and `(?:b|c)d` of `a|(?:b|c)d`."""
    found = [""]
    depth = 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            found.append("")
        else:
            found[-1] += piece
    return found
