"""Parsing of other people's code."""

from __future__ import annotations

import ast
import warnings


def parsed(code: str | bytes, name: str = "<unknown>") -> ast.Module:
    r"""The syntax tree of code, without what Python says of it on standard error, such as of `"\d"`.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: from `ast.parse`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code, name)
