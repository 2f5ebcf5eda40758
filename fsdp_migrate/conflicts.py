"""Edits of several findings that want the same code: which findings keep theirs, and what the others say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdp_migrate.codemods.edit.text import Refused, overlap
from fsdp_migrate.codemods.rule import Edit, Found
from fsdp_migrate.findings import Action

_LAST_COMMA = re.compile(r",(?=[)\]}])")


def without_overlaps(every: list[Found], of_imports: Sequence[Edit]) -> list[Found]:
    """What is found, without the edits that change the same places as those of imports, and without what depends on them."""
    left = [_without(each, of_imports) for each in every]
    refused = {each.node for each, now in zip(every, left, strict=True) if each != now}
    for place, each in enumerate(left):
        if each.of in refused:
            left[place] = undone(each)
    return left


def _without(found: Found, others: Sequence[Edit]) -> Found:
    """A finding, without its edits if one of them wants the same code as other edits."""
    if found.edits is None:
        return found
    try:
        if not overlap([*found.edits(), *others]):
            return found
    except Refused:
        return found
    message = (
        f"{found.message} Not done, because another rewrite changes the same code: "
        "make this change yourself."
    )
    return found._replace(action=Action.MANUAL, message=message, edits=None, imports=(), removed=())


def undone(found: Found) -> Found:
    """A finding without its edits, because those of the construct that it belongs to cannot be made."""
    message = f"{found.message} Not done: make this change yourself."
    return found._replace(action=Action.MANUAL, message=message, edits=None, imports=(), removed=())


def is_written(edits: Sequence[Edit], taken: Sequence[Edit]) -> bool:
    """Whether edits that were taken before have written the same, in code that they put in another place."""
    pieces = [_on_one_line(edit.text) for edit in edits]
    around = [
        [
            _on_one_line(other.text)
            for other in taken
            if other.start <= edit.start and edit.end <= other.end
        ]
        for edit in edits
    ]
    return all(
        piece and any(piece in text for text in texts)
        for piece, texts in zip(pieces, around, strict=True)
    )


def _on_one_line(code: str) -> str:
    """Code without white space and without commas behind a last item, which both depend on its width."""
    return _LAST_COMMA.sub("", "".join(code.split()))
