"""A search of one alternative after the other finds what the pattern as a whole finds."""

import re

import pytest

from fsdp_migrate.search import Search

PATTERNS = (r"\bword\b|a\|b", r"[(|]x|(?:c|d)e", r"f\(|\bg[)|]+h", r"\bwo?rd|\b(?:i|j)k", "no|word")
TEXTS = ("word", "sword", "word_", "a|b", "a", "|x", "(x", "ce", "de", "c", "f(", "f", "g|h", "gh")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_alternatives(pattern: str) -> None:
    wanted = [re.search(pattern, text) is not None for text in (*TEXTS, "wd", "ik", "xik", "k")]
    assert any(wanted)
    assert [Search(pattern)(text) for text in (*TEXTS, "wd", "ik", "xik", "k")] == wanted
    in_bytes = Search(pattern.encode())
    assert [in_bytes(text.encode()) for text in (*TEXTS, "wd", "ik", "xik", "k")] == wanted
