"""Which import statement takes each name that edits need, and which names, imported or assigned, nothing uses after them."""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Set

from fsdp_migrate.codemods.context import Context, are_of_torch, shortened
from fsdp_migrate.codemods.edit.import_statement import ImportChange
from fsdp_migrate.codemods.edit.imports import module_of
from fsdp_migrate.codemods.edit.taken_away import drop_statement
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.facts.file import last_name, place_of, root_of
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH, is_private
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.scopes import Assigned, Defined, Imported, Scope, Variable
from fsdp_migrate.findings import Action

_SIBLINGS = "torch.distributed."
_OF_CONTEXTS = ("functools", "contextlib", "fsdp_migrate")


def hand_out(
    context: Context, statements: list[ImportChange], needed: Iterable[Import]
) -> list[tuple[str, str]]:
    """Gives each needed name to an import statement; returns those that stand in front of all."""
    insert: list[tuple[str, str]] = []
    for need in dict.fromkeys(needed):
        if _is_imported(context, need):
            continue
        beside = _beside(context, statements, need)
        if beside is None:
            insert.append((need.module, need.name))
            continue
        if all(statement.node is not beside for statement in statements):
            statements.append(ImportChange(beside))
        change = next(statement for statement in statements if statement.node is beside)
        change.add.append((need.module, need.name))
    return insert


def _is_imported(context: Context, need: Import) -> bool:
    """Whether the top of the file imports the name already, perhaps from a file of the program that has it from torch."""
    name, _, local = need.name.partition(" as ")
    wanted = local or name or need.module.split(".")[0]
    if need.module.startswith("torch.distributed") and name in context.file.scope.bindings:
        if are_of_torch(name, context.dotted_at(name, context.file.scope)):
            return True
    for binding in context.file.scope.bindings.get(wanted, ()):
        if not isinstance(binding, Imported) or binding.member != (name or None):
            continue
        module = binding.alias.name
        if name:
            module = binding.module
        is_above = binding.alias.lineno <= _line_of_use(context, need)
        if module == need.module and is_above and binding.statement in context.file.tree.body:
            return True
    return False


def _line_of_use(context: Context, need: Import) -> int:
    """The line that an import has to be above: the file's last one for code that runs when a function is called."""
    if need.at is not None and context.file.scope_of(need.at) is context.file.scope:
        return place_of(need.at)[0]
    return len(context.file.line_starts)


def _beside(
    context: Context, statements: list[ImportChange], need: Import
) -> ast.Import | ast.ImportFrom | None:
    """The statement that imports from the same module, else the one that imported what the name replaces.

    Else one that imports from FSDP1, or from the same package, and the last import at the top of the file if there is none:
    one above the place that needs the name.
    """
    file = context.file
    used = _line_of_use(context, need)
    head = [node for node in _leading(context) if node.lineno <= used]
    ours = [
        s.node for s in statements if isinstance(s.node, ast.ImportFrom) and "*" not in s.locals
    ]
    replaced = next((node for node in ours if _imports(context, node, need.at)), None)
    if replaced is not None:
        block = file.block(replaced)
    else:
        block = file.tree.body
    joins = {s.node for s in statements for m, _ in (*s.add, *s.move.values()) if m == need.module}
    same = [
        node
        for node in (*ours, *head)
        if isinstance(node, ast.ImportFrom)
        and node in block
        and node.names[0].name != "*"
        and (node in head or (replaced is not None and node.lineno <= replaced.lineno))
        and (node in joins or (node.module == need.module and not node.level))
    ]
    if need.name and same:
        return min(same, key=lambda node: node.names[0].asname is not None)
    related = [
        node
        for node in ours
        if node in head and need.module.startswith((TORCH, RUNTIME)) and not _is_standard(node)
    ]
    if need.name and (replaced or related):
        return replaced or related[0]
    top = need.module.split(".")[0]
    if top in sys.stdlib_module_names:
        known = sys.stdlib_module_names - {"__future__"}
        standard = [node for node in head if module_of(node).split(".")[0] in known]
        above = [n for n in standard if isinstance(n, ast.Import) or module_of(n) < need.module]
        return next(
            reversed(above or standard), None
        )  # without one it stands in front of all others
    near = [node for node in head if isinstance(node, ast.ImportFrom) == bool(need.name)]
    siblings = [node for node in near if module_of(node).startswith(_SIBLINGS)]
    if need.name and need.module.startswith(_SIBLINGS) and siblings:
        above = [node for node in siblings if module_of(node) < need.module]
        return above[-1] if above else siblings[0]
    of_package = [node for node in near if module_of(node).split(".")[0] in ("torch", top)]
    if not need.name and not of_package:  # in front of what is imported from its modules
        below = [node for node in head if module_of(node).split(".")[0] == top]
        if below:
            return below[0]
    return next(reversed(of_package or near or head), None)


def _is_standard(node: ast.ImportFrom) -> bool:
    return module_of(node).split(".")[0] in sys.stdlib_module_names


def _leading(context: Context) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports at the top of the file: what is defined below one of them may run before a later import."""
    for node in context.file.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and context.is_alone(node):
            yield node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return


def _imports(context: Context, node: ast.ImportFrom, at: ast.AST | None) -> bool:
    """Whether a statement binds the name that a reference begins with."""
    root = None
    if isinstance(at, ast.expr):
        root = root_of(at)
    names = {alias.asname or alias.name for alias in node.names}
    scope = context.file.scope_of(node)
    return root is not None and root.id in names and sees(context, root, scope, root.id)


def sees(context: Context, load: ast.Name, scope: Scope, local: str) -> bool:
    """Whether a name that is read is the one that a scope binds."""
    found = context.file.scope_of(load).lookup(local)
    return found is not None and found.scope is scope


def may_go(context: Context, name: ast.Name) -> bool:
    """Whether new code never uses a name that removed code did: of FSDP1, public or private, `partial` or `nullcontext`."""
    if name.id == "torch":  # what takes FSDP1's place is reached through it
        return False
    path: ast.AST = name
    while isinstance(path, ast.expr):
        if path in context.references:
            return True
        parent = context.file.parents[path]
        if isinstance(parent, ast.Attribute):
            path = parent
        else:
            path = context.file.tree
    paths = context.dotted(name)
    return any(path.split(".")[0] in _OF_CONTEXTS or is_private(path) for path in paths)


def is_spent(context: Context, node: ast.stmt, local: str, gone: Collection[ast.AST]) -> bool:
    """Whether edits took away every use of a name, and no other file imports it from here.

    The code of a package read it: it is no name that the package only hands on.
    """
    scope = context.file.scope_of(node)
    loads = [
        load for load in context.file.loads.get(local, ()) if sees(context, load, scope, local)
    ]
    if not loads or not all(load in gone and may_go(context, load) for load in loads):
        return False
    is_seen_by_others = scope is context.file.scope and not _is_replaced(context, node, local)
    return not (is_seen_by_others and context.is_asked_for(local))


def _is_replaced(context: Context, node: ast.stmt, local: str) -> bool:
    """Whether a statement of the file itself assigns a name again, below its import."""
    file = context.file
    made = [each for each in file.scope.bindings.get(local, ()) if isinstance(each, Assigned)]
    statements = [file.statement(each.target) for each in made]
    return any(each in file.tree.body and each.lineno > node.lineno for each in statements)


def unused_by(context: Context, gone: Set[ast.AST], after: str) -> dict[ast.AST, set[str]]:
    """The names of the program's own that edits took every use of, and that the new text does not have, by their imports.

    Args:
        gone: what the edits took away.
        after: the file's text with them; "" where it is not written.
    """
    file = context.file
    found: dict[ast.AST, set[str]] = {}
    read = {node.id for node in gone if isinstance(node, ast.Name)}
    for node in file.of(ast.ImportFrom):
        lines = file.text[slice(*file.lines(node))]
        is_tried = any_is(file.ancestors(node), ast.Try)
        if not after or is_tried or "#" in lines:
            continue
        for local in {alias.asname or alias.name for alias in node.names} & read:
            word = re.compile(rf"\b{local}\b")
            loads = file.loads.get(local, ())
            is_left = len(word.findall(after)) > len(word.findall(lines))
            if is_left or len(file.scope_of(node).bindings.get(local, ())) > 1:
                continue
            is_at_top = file.scope_of(node) is file.scope
            if {*loads} <= gone and not (is_at_top and context.is_for_others(local)):
                found.setdefault(node, set()).add(local)
    return found


def spent_aliases(context: Context, gone: Set[ast.AST]) -> Iterator[ast.stmt]:
    """The assignments `Sharded = FSDP` every use of which edits took away."""
    for node, name in context.references.items():
        statement = context.file.parents[node]
        if name != CLASS or not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            continue
        local = last_name(statement.targets[0])
        loads = context.file.loads.get(local, ())
        if loads and {*loads} <= gone and context.is_alone(statement):
            if not context.is_for_others(local):
                yield statement


def removal(
    context: Context, rule: Rule, statement: ast.stmt, why: str, loses: Collection[str] = ()
) -> Found:
    """The finding that takes a statement away, with the comments that speak of it.

    Args:
        loses: comments in it that are removed as well.
    """
    made = lambda: [drop_statement(context.file, statement, loses)], (), (statement,)
    source = shortened(context.source(statement))
    if isinstance(statement, ast.FunctionDef):
        source = f"def {statement.name}"
    return Found(rule, statement, Action.REWRITE, f"Removed: {why}.", source, *made)


def spent(
    context: Context, gone: Collection[ast.AST], written: Collection[str] = ()
) -> list[ast.stmt]:
    """The assignments whose names only code that goes away has read: `policy = ModuleWrapPolicy({Block})`.

    Args:
        written: the names that the new code reads.
    """
    nodes = {node for each in gone for node in ast.walk(each)}
    unused = {node for each in gone if _is_unused(context, each) for node in ast.walk(each)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id not in written]
    found: dict[ast.stmt, None] = {}
    while names:
        name = names.pop()
        variable = context.file.variable(name)
        if variable is None or not all(read in nodes for read in context.file.reads(name)):
            continue
        if (function := _own_function(context, variable)) is not None:
            found[function] = None
            continue
        if len(variable.assigned) != len(variable.bindings):
            continue
        statements = [context.removable(each) for each in variable.assigned]
        values = [each.value for each in variable.assigned]
        pure = all(is_pure(context, value) for value in values)
        if name in unused:
            pure = not any(map(may_change, values))
        if pure and None not in statements:
            for each in variable.assigned:
                found[context.file.statement(each.target)] = None
                inside = set(ast.walk(each.value)) - nodes
                nodes |= inside
                names += [
                    node for node in inside if isinstance(node, ast.Name) and node.id not in written
                ]
    return list(found)


def _own_function(context: Context, variable: Variable) -> ast.FunctionDef | None:
    """The function that a name means, if it is for its own file alone: `_name` at the top, or inside of another function."""
    match variable.bindings:
        case [Defined(node=ast.FunctionDef(decorator_list=[]) as function)]:
            is_inside = context.file.function(function) is not None
            is_private = function.name.startswith("_") and not context.is_for_others(function.name)
            is_method = isinstance(context.file.parents[function], ast.ClassDef)
            is_plain = not is_method and context.is_alone(function)
            if (is_inside or is_private) and is_plain and "#" not in context.source(function):
                return function
    return None


# Arguments of FSDP1's constructor that mean nothing under FSDP2, whatever their values.
WITHOUT_EFFECT = ("backward_prefetch", "limit_all_gathers", "use_orig_params")
# What an expression may do beside giving a value, and the calls that change something.
BINDING = (ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
_GIVES = re.compile(r"functools\.partial|torch\.device|torch\.\w+\.current_device")
_BUILTINS = frozenset({"bool", "dict", "int", "list", "set", "tuple"})
_CHANGING = ("pop", "popitem", "setdefault", "next", "append", "update", "broadcast", "all_reduce")


def _is_unused(context: Context, node: ast.AST) -> bool:
    """Whether a node is the value of an argument that means nothing under FSDP2."""
    keyword = context.file.parents.get(node)
    return isinstance(keyword, ast.keyword) and keyword.arg in WITHOUT_EFFECT


def may_change(value: ast.expr) -> bool:
    """Whether an expression whose value nothing needs must run all the same: it binds, waits, or changes something."""
    return any(
        isinstance(node, BINDING)
        or (isinstance(node, ast.Call) and last_name(node.func) in _CHANGING)
        for node in ast.walk(value)
    )


def is_pure(context: Context, value: ast.AST) -> bool:
    """Whether an expression only gives a value: calls of options, policies and devices, no assignment and no `await`."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, BINDING):
        return False
    if isinstance(value, ast.Call) and not _only_makes(context, value.func):
        return False
    return all(is_pure(context, child) for child in ast.iter_child_nodes(value))


def _only_makes(context: Context, function: ast.expr) -> bool:
    if context.fsdp1(function) is not None:
        return True
    dotted = context.dotted(function)
    if dotted:
        return all(map(_GIVES.fullmatch, dotted))
    is_builtin = isinstance(function, ast.Name) and function.id in _BUILTINS
    return is_builtin and not context.program.definition(function, context.file)
