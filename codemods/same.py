"""Code that the edits of a file make equal to other code of it: one of the two stays.

Runs on the edits of all rules: what a rule writes becomes equal to code that it does not know.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from fsdp_migrate.codemods.after import After, Candidate, Repeat, is_inside
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit.text import Refused, indentation, overlap, remove_statement
from fsdp_migrate.codemods.emptied import emptied
from fsdp_migrate.codemods.overrides import overrides
from fsdp_migrate.codemods.questions import only_looks
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.codemods.unread import unread
from fsdp_migrate.facts.file import File, parsed
from fsdp_migrate.facts.nodes import all_are, any_is
from fsdp_migrate.facts.scopes import Assigned, Defined
from fsdp_migrate.findings import Action

RULE = Rule("FSDP020", "became-equal")

_BRANCHES = "Both branches do the same now. One of them remains, without the test."
_ASSIGNMENT = "Removed: `{}` has this value already."
_GONE = "Removed: this is part of code that another rewrite removes."
_METHOD = "Removed: it does what `{}.{}` does now, which the class inherits."
_BOTH = "Changed: sharded models get this method as well."
_NOT_SHARDED = re.compile(r"(?P<article>\ban? )?\bnon-FSDP (?P<next>\w)", re.IGNORECASE)
# Values that nobody changes: two calls with the same constants make the same.
_OPTIONS = ("StateDictOptions", "MixedPrecisionPolicy", "CPUOffloadPolicy", "OffloadPolicy")

Made = tuple[Found, Sequence[Edit]]
"""A finding, and the edits that are made for it."""


def without_repeats(
    context: Context, made: list[Made], is_on: Callable[[Rule, ast.AST], bool]
) -> list[Made]:
    """The findings and their edits, with one edit for each place where they leave the same code twice."""
    if not any(own for _, own in made):
        return made
    file = context.file
    if file.of(ast.ClassDef):
        for left in (unread(file, context.program), overrides(file)):
            made = _without(context, made, is_on, left)
    if any("pass" in edit.text for _, own in made for edit in own):
        made = _without(context, made, is_on, emptied(file, context.program))
    for candidates in (_branches(file), _assignments(file), _methods(file)):
        made = _without(context, made, is_on, candidates)
    return made


def _without(
    context: Context,
    made: list[Made],
    is_on: Callable[[Rule, ast.AST], bool],
    candidates: Iterable[Candidate],
) -> list[Made]:
    for repeat_in in candidates:
        edits = [edit for _, own in made for edit in own]
        repeat = repeat_in(After(context.file, edits))
        if repeat is not None and is_on(repeat.rule or RULE, repeat.node):
            made = _with(context, made, repeat)
    return made


def _with(context: Context, made: Sequence[Made], repeat: Repeat) -> list[Made]:
    """The findings after one more edit, which takes the place of all in its region."""
    region = repeat.edit.start, repeat.edit.end
    gone = [context.file.lines(each) for each in repeat.gone]
    found: list[Made] = []
    for each, own in made:
        kept = [edit for edit in own if not is_inside(edit, region)]
        if own and all(_is_inside_any(edit, gone) for edit in own):
            each = _gone(each)
        found.append((each, kept))
    finding = Found(
        repeat.rule or RULE,
        repeat.node,
        Action.REWRITE,
        repeat.message,
        shortened(context.source(repeat.node)),
        removed=repeat.gone,
    )
    found.append((finding, [repeat.edit]))
    if repeat.docstring is not None:
        node, edit = repeat.docstring
        found.append((Found(RULE, node, Action.REWRITE, _BOTH, "docstring"), [edit]))
    return found


def without_removed(made: Sequence[Made], own: Sequence[Edit]) -> list[Made]:
    """The findings before some edits, but for those all of whose code these take away.

    Raises:
        Refused: where they still want the same code.
    """
    removed = [edit for edit in own if not edit.text.strip()]
    found: list[Made] = []
    for each, edits in made:
        if edits and all(_is_within_any(edit, removed) for edit in edits):
            found.append((_gone(each), ()))
        else:
            found.append((each, edits))
    left = [edit for _, edits in found for edit in edits]
    if overlap([*left, *own]):
        raise Refused("another rewrite changes the same code")
    return found


def _is_within_any(edit: Edit, others: Sequence[Edit]) -> bool:
    return any(_is_within(edit, other) for other in others)


def _is_within(edit: Edit, other: Edit) -> bool:
    return other.start <= edit.start and edit.end <= other.end


def _gone(found: Found) -> Found:
    """A finding whose edits are not made, because the code that they change is removed."""
    if found.action is Action.REWRITE and not found.message.startswith("Removed"):
        found = found._replace(message=_GONE)
    return found._replace(imports=())


def _is_inside_any(edit: Edit, regions: Sequence[tuple[int, int]]) -> bool:
    return any(is_inside(edit, region) for region in regions)


def _are_same(after: After, one: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
    """Whether two pieces of code are the same for Python, whatever their layout."""
    trees = [_tree(after.code(each)) for each in (one, other)]
    return trees[0] is not None and trees[0] == trees[1]


def _tree(code: str | None) -> str | None:
    """What code is for Python, a single function without its docstring; None if that is not known."""
    try:
        tree = parsed(code or "")
    except (SyntaxError, ValueError):
        return None
    match tree.body:
        case [ast.FunctionDef() as function] if ast.get_docstring(function) is not None:
            del function.body[0]
    if code is not None:
        return ast.dump(tree)
    return None


def _become_same(after: After, one: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
    """Whether edits make two pieces of code the same, which were not."""
    return _are_same(after, one, other) and not _are_same(after.before, one, other)


# An `if` #


def _branches(file: File) -> Iterator[Candidate]:
    """Each `if` with an `else`, inner ones first."""
    for branches in sorted(file.of(ast.If), key=lambda each: -each.lineno):
        if branches.orelse and only_looks(branches.test):
            yield partial(_same_branches, branches=branches)


def _same_branches(after: After, branches: ast.If) -> Repeat | None:
    """The `if` as one of its branches, the one that is as it was where there is one."""
    file = after.file
    parts = (branches.body, branches.orelse)
    changed = [any(map(after.changes, part)) for part in parts]
    is_elif = file.source(branches).startswith("elif")
    if not any(changed) or is_elif or not after.is_separate(branches):
        return None
    if any_is(ast.walk(branches), ast.Import | ast.ImportFrom):
        return None
    kept = 1
    if changed[1] and not changed[0]:
        kept = 0
    code = after.code(parts[kept])
    if code is None or not _become_same(after, *parts) or _has_long_strings(code):
        return None
    margin = indentation(file, branches)
    lines = code.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if line.strip():
            lines[place] = margin + line
    edit = Edit(*file.lines(branches), "".join(lines))
    return Repeat(branches, _BRANCHES, edit, (branches.test, *parts[1 - kept]))


def _has_long_strings(code: str) -> bool:
    """Whether a string of some code goes on in the next line, where it would be indented otherwise."""
    strings = [n for n in ast.walk(parsed(code)) if isinstance(n, ast.Constant | ast.JoinedStr)]
    return any(node.end_lineno != node.lineno for node in strings)


# An assignment #


def _assignments(file: File) -> Iterator[Candidate]:
    """Each assignment to a variable of a function that the same block has assigned above."""
    for second in file.of(ast.Assign):
        first = _assigned_above(file, second)
        if first is not None:
            yield partial(_same_value, first=first, second=second)


def _assigned_above(file: File, second: ast.Assign) -> ast.Assign | None:
    """The assignment before this one to its variable, if both are in one block and no other code assigns between them."""
    match second.targets:
        case [ast.Name() as target] if file.function(second) is not None:
            bindings = file.bindings(target)
        case _:
            return None
    if not all_are(bindings, Assigned):
        return None
    made = [file.statement(each.target) for each in bindings if isinstance(each, Assigned)]
    block = file.block(second)
    above = [each for each in made if each.lineno < second.lineno]
    first = max(above, key=lambda each: each.lineno, default=None)
    if not isinstance(first, ast.Assign) or len(first.targets) != 1:
        return None
    if first in block:
        return first
    return None


def _same_value(after: After, first: ast.Assign, second: ast.Assign) -> Repeat | None:
    file = after.file
    if not after.changes(second) or not after.is_separate(second):
        return None
    if not _become_same(after, [first], [second]) or not _makes_options(after.code([second])):
        return None
    name = file.source(second.targets[0])
    return Repeat(second, _ASSIGNMENT.format(name), remove_statement(file, second), (second.value,))


def _makes_options(code: str | None) -> bool:
    """Whether an assignment gives options of torch's, made of constants."""
    match parsed(code or "").body:
        case [ast.Assign([ast.Name()], ast.Call(ast.Name(name), [], keywords))]:
            given = [keyword.value for keyword in keywords]
            return name in _OPTIONS and all_are(given, ast.Constant)
    return False


# A method #


def _methods(file: File) -> Iterator[Candidate]:
    """Each method that a base class of the same file has as well."""
    for method in file.of(ast.FunctionDef):
        around = file.parents[method]
        if isinstance(around, ast.ClassDef) and _own(file, around, method.name) == [method]:
            inherited = _inherited(file, around, method.name)
            if inherited is not None:
                yield partial(_same_method, method=method, other=inherited)


def _own(file: File, cls: ast.ClassDef, name: str) -> list[ast.AST]:
    """What the body of a class defines by a name."""
    nodes: list[ast.AST] = []
    for binding in file.scope_of(cls.body[0]).bindings.get(name, ()):
        if isinstance(binding, Defined):
            nodes.append(binding.node)
        else:
            nodes.append(cls)
    return nodes


def _inherited(file: File, cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The method that a class with one base has from it, where this file shows all classes up to that one."""
    seen = {cls.name}
    while True:
        match cls:
            case ast.ClassDef(bases=[ast.Name(base)], keywords=[]) if base not in seen:
                bindings = file.scope.bindings.get(base, ())
            case _:
                return None
        match [*bindings]:
            case [Defined(node=ast.ClassDef() as cls)]:
                seen.add(base)
            case _:
                return None
        match _own(file, cls, name):
            case [ast.FunctionDef() as method]:
                return method
            case [_, *_]:
                return None


def _same_method(after: After, method: ast.FunctionDef, other: ast.FunctionDef) -> Repeat | None:
    """A method that goes, with its docstring: what it says is in its base's name."""
    file = after.file
    if not any(map(after.changes, (method, other))) or not after.is_separate(method):
        return None
    if method.decorator_list or other.decorator_list:
        return None
    if re.search(r"\bsuper\b|\b__\w+(?<!__)\b|\b__class__\b", file.source(method)):
        return None  # which mean another thing in another class
    if not _become_same(after, [method], [other]):
        return None
    base = file.enclosing_class(other)
    assert base is not None
    message = _METHOD.format(base.name, method.name)
    edit = remove_statement(file, method)
    return Repeat(method, message, edit, (method,), _of_both(file, other))


def _of_both(file: File, method: ast.FunctionDef) -> tuple[ast.expr, Edit] | None:
    """The docstring of a method that sharded models get as well, without the words that it is for others."""
    match method.body[0]:
        case ast.Expr(ast.Constant(str()) as docstring):
            start, end = file.span(docstring)
        case _:
            return None
    found = _NOT_SHARDED.search(file.text, start, end)
    if found is None:
        return None
    article = ""
    if found["article"]:
        article = "a "
        if found["next"] in "aeiou":
            article = "an "
    return docstring, Edit(found.start(), found.end(), article + found["next"])
