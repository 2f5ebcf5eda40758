"""An attribute of an object that only code which the edits take away has read: its assignments are removed."""

import ast
import re
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.codemods.after import After, Candidate, Repeat
from fsdp_migrate.codemods.edit.taken_away import drop_statement
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.questions import only_looks
from fsdp_migrate.codemods.without_use import RULE
from fsdp_migrate.facts.file import File, is_name
from fsdp_migrate.facts.program import Definition, External, Program

_UNREAD = "Removed: nothing reads this attribute any more."
# What reads attributes without their names.
_BY_STRING = re.compile(r"__dict__|__slots__|__[gs]etstate__|\bvars\(|\basdict\(|getattr\(|pickle")
# Classes of packages that read no attribute of the user's.
_PLAIN = re.compile(
    r"object|abc\.ABC|typing\.(Generic|Protocol)|torch\.nn\.(modules\.module\.)?Module"
)


def unread(file: File, program: Program) -> Iterator[Candidate]:
    """The assignments `self.name = value`, by their attributes."""
    for name, attributes in file.attributes.items():
        stores = [each for each in attributes if isinstance(each.ctx, ast.Store)]
        if not stores or len(stores) == len(attributes) or name.startswith("__"):
            continue
        statements = [_assignment(file, each) for each in stores]
        if all(statements) and program.tree.having(_uses(name).encode()) <= {str(file.path)}:
            for each in statements:
                assert each is not None
                yield partial(_without, program=program, assignment=each, name=name)


def _uses(name: str) -> str:
    """What may read or assign an attribute, as a pattern: the attribute, or its name in a string."""
    return rf"\.\s*{name}\b|[\"']{name}[\"']"


def _assignment(file: File, attribute: ast.Attribute) -> ast.Assign | None:
    """`self.name = value`, where the value is only looked up."""
    match file.parents[attribute]:
        case ast.Assign(targets=[_], value=value) as statement:
            if is_name(attribute.value, "self") and only_looks(value):
                return statement
    return None


def _without(after: After, *, program: Program, assignment: ast.Assign, name: str) -> Repeat | None:
    file = after.file
    text = spliced(file.text, after.edits)
    left = re.findall(_uses(name), text)
    if len(left) >= len(re.findall(_uses(name), file.text)):
        return None  # no edit removed a use
    if len(left) != len(re.findall(rf"\bself\.{name}\s*=(?!=)", text)):
        return None
    if after.changes(assignment) or not after.is_separate(assignment):
        return None
    if not _is_of_plain_class(program, file, assignment):
        return None
    edit = drop_statement(file, assignment)
    return Repeat(assignment, _UNREAD, edit, (assignment,), rule=RULE)


def _is_of_plain_class(program: Program, file: File, node: ast.AST) -> bool:
    """Whether the files show all classes above the one that a node is in, and none of them reads attributes by strings."""
    around = file.enclosing_class(node)
    if around is None:
        return False
    pending = [Definition(file, around)]
    while pending:
        current = pending.pop()
        assert isinstance(current.node, ast.ClassDef)
        if _BY_STRING.search(current.file.source(current.node)) or current.node.decorator_list:
            return False
        for base in current.node.bases:
            found = program.meanings(base, current.file)
            for meaning in found:
                match meaning:
                    case Definition(node=ast.ClassDef()):
                        pending.append(meaning)
                    case External(dotted) if _PLAIN.fullmatch(dotted):
                        pass
                    case _:
                        return False
            if not found and not is_name(base, "object"):
                return False
    return True
