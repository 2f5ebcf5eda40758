"""Where two trees of LibCST's differ, of which one was made out of the other, as pieces of the first one's text."""

from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from fsdp_migrate.facts.file import NEWLINE

Span = tuple[int, int]


def spans(module: cst.Module) -> dict[cst.CSTNode, Span]:
    """Where each node begins and ends in the module's text, without white space and brackets around it.

    Brackets belong to tuples and generators, as they do for `ast`.
    """
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    starts = [0, *[end.end() for end in NEWLINE.finditer(module.code)]]
    starts.append(len(module.code))  # a newline that the last line does not have
    found: dict[cst.CSTNode, Span] = {}
    for node, place in wrapper.resolve(PositionProvider).items():
        start = place.start
        end = place.end
        found[node] = starts[start.line - 1] + start.column, starts[end.line - 1] + end.column
    for node in found:
        if isinstance(node, cst.Tuple | cst.GeneratorExp) and node.lpar:
            found[node] = found[node.lpar[-1]][0], found[node.rpar[0]][1]
    return found


def differences(
    before: cst.Module, after: cst.Module, margin: int
) -> Iterator[tuple[int, int, str]]:
    """Each piece of the text before, by its start and its end, and what takes its place.

    Nodes that both trees have stay; what is between two of them is compared as text.

    Args:
        margin: the column at which white space is taken out of an indentation.
    """
    old = _anchors(before)
    new = _anchors(after)
    olds = [*old]
    news = [*new]
    matcher = SequenceMatcher(None, [*map(id, olds)], [*map(id, news)], autojunk=False)
    old_end = new_end = 0
    for block in matcher.get_matching_blocks():
        for at in range(block.size):
            one = old[olds[block.a + at]]
            other = new[news[block.b + at]]
            yield from _piece(
                before.code, after.code, (old_end, one[0]), (new_end, other[0]), margin
            )
            old_end = one[1]
            new_end = other[1]
    last = (old_end, len(before.code)), (new_end, len(after.code))
    yield from _piece(before.code, after.code, *last, margin)


def _anchors(module: cst.Module) -> dict[cst.CSTNode, Span]:
    """The nodes with text and without parts, and where statements with blocks begin, in the order of the text.

    None that is there twice.
    """
    places = spans(module)
    count: Counter[cst.CSTNode] = Counter()
    pending: list[cst.CSTNode] = [module]
    while pending:
        node = pending.pop()
        count[node] += 1
        pending += node.children
    found: dict[cst.CSTNode, Span] = {}
    for node in count:
        start, end = places.get(node, (0, 0))
        if count[node] > 1:
            continue
        if isinstance(node, cst.BaseCompoundStatement):
            found[node] = start, start
        elif not node.children and start < end:
            found[node] = start, end
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _piece(
    before: str, after: str, old: Span, new: Span, margin: int
) -> Iterator[tuple[int, int, str]]:
    """The part of two pieces of text that differs."""
    was = before[slice(*old)]
    text = after[slice(*new)]
    if was == text:
        return
    ahead = _common(was, text)
    behind = _common(was[ahead:][::-1], text[ahead:][::-1])
    start = old[0] + ahead
    end = old[1] - behind
    text = text[ahead : len(text) - behind]
    line = max(before.rfind("\n", 0, start), before.rfind("\r", 0, start)) + 1
    if not text and not before[line:end].strip(" \t"):
        # Blocks inside of one another, which are both taken out, have their own columns.
        end = line + margin + end - start
        start = line + margin
    elif not text:
        start, end = _from_the_head(before, line, start, end)
    yield start, end, text


def _from_the_head(text: str, line: int, start: int, end: int) -> Span:
    """A part to remove, from where its line begins if that leaves the same: of two heads `with` the first one goes."""
    head = line + len(text[line:start]) - len(text[line:start].lstrip(" \t"))
    length = start - head
    if length and text[head:start] == text[end - length : end]:
        return head, end - length
    return start, end


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
