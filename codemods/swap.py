"""Imports of public FSDP1 names come from the runtime: the one edit that is always made, sound by itself.

Runs last: it knows which names the other edits took away, and which they need. The FSDP1 names that the program goes on
using are the runtime's then, and say so once a line.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.back_to_torch import in_torch, join
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.import_statement import ImportChange
from fsdp_migrate.codemods.edit.imports import edit_imports, insert_first, is_directive, module_of
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.codemods.imports import hand_out, is_spent, may_go, sees, spent_aliases, unused_by
from fsdp_migrate.codemods.rule import Edit, Edits, Found, Import, Rule
from fsdp_migrate.codemods.written_out import looked_into, written_out
from fsdp_migrate.facts.file import last_name, root_of
from fsdp_migrate.facts.names import RUNTIME, TORCH, fsdp1_name, in_runtime, is_module
from fsdp_migrate.facts.nodes import text_of
from fsdp_migrate.facts.staying import OF_OTHERS, staying
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP001", "fsdp1-import", Severity.RAISES)
OPTION = Rule("FSDP017", "fsdp1-option", Severity.RAISES)
_FOR_OTHERS = re.compile(r"export|public|others?\b|compat|keep", re.IGNORECASE)
_SPENT = "Removed: nothing uses it any more."


@dataclass(frozen=True)
class Swap:
    """What is done with the imports of a file.

    Attributes:
        of_torch: whether any of them, or a name that is written out, is torch's.
        of_runtime: whether any of them is the runtime's afterwards.
    """

    found: list[Found]
    edits: Edits
    of_torch: bool
    of_runtime: bool


def swap(
    context: Context,
    removed: Collection[ast.AST] = (),
    needed: Sequence[Import] = (),
    is_on: Callable[[Rule, ast.AST], bool] = lambda rule, node: True,
    after: str = "",
) -> Swap:
    """Decides on every import of an FSDP1 name and every FSDP1 name that is written out.

    Args:
        removed: code that the edits of other rules take away.
        needed: names that those edits use.
        is_on: whether a rule is asked for at a node.
        after: the text of the file with those edits, if it is written.
    """
    gone = {node for region in removed for node in ast.walk(region)}
    aliases = list(spent_aliases(context, gone))
    gone |= {node for each in aliases for node in ast.walk(each)}
    known = staying_names(context).items()
    file = context.file
    stays = {n: to for n, to in known if n in file.parents and n not in gone}
    own = unused_by(context, gone, after)
    statements = list(_statements(context, gone, own))
    for statement in statements:
        _decide(context, statement, gone, stays, {need.name for need in needed})
        statement.drop |= statement.locals & own.get(statement.node, set())
    if context.form == "torch":
        join(context, statements)
    every = [each for each in written_out(context) if each[0] not in stays]
    spelled_out = [each for each in every if each[0] not in gone]
    of_torch = bool(every) or any(_is_of_torch(context, each) for each in statements)
    if context.form == "torch":
        spelled_out = []
    statements = [each for each in statements if is_on(RULE, each.node)]
    spelled_out = [each for each in spelled_out if is_on(RULE, each[0])]
    imported = {
        target
        for s in statements
        for local, (target, name) in s.move.items()
        if not name and is_module(local)
    }
    spelled: dict[ast.expr, str] = {}
    needs: dict[str, Import] = {}
    # Code of functions runs when these are called: any import at the top of the file is above it.
    for node, target in sorted(spelled_out, key=lambda e: file.scope_of(e[0]) is not file.scope):
        name = ""
        if node in context.references or node in context.quoted:
            name = _last(node)
        spelled[node] = f"{target}.{name}".rstrip(".")
        # An `import a.b` of the file already makes `a` known, as far as the name needs it.
        if not any(each == target or each.startswith(f"{target}.") for each in imported):
            needs.setdefault(target, Import(target, "", node))
    insert = hand_out(context, statements, [*needed, *needs.values()])
    found = [each for statement in statements for each in _say(context, statement)]
    found += [
        Found(RULE, node, Action.RUNTIME, f"This name now comes from `{target}`.")
        for node, target in spelled_out
    ]
    found += [Found(RULE, each, Action.REWRITE, _SPENT, context.source(each)) for each in aliases]
    found += _say_staying(context, statements, stays)
    return Swap(
        found,
        lambda: [*_edits(context, statements, insert, spelled), *map(context.remove, aliases)],
        of_torch,
        _is_of_runtime(statements, [*needed, *needs.values()]),
    )


def staying_names(context: Context) -> dict[ast.expr, str]:
    if context.program.has(OF_OTHERS):
        return context.program.once(staying)
    return {}


def _say_staying(
    context: Context, statements: Sequence[ImportChange], stays: Mapping[ast.expr, str]
) -> Iterator[Found]:
    """What stays torch's, at its import or where it is written out; and what cannot, beside other uses of a module."""
    said: dict[ast.AST, list[ast.expr]] = {}
    for node, to in stays.items():
        root = last_name(root_of(node))
        homes = [each for each in statements if root in _first(each.locals)]
        if [e for e in homes if root in _first(e.move) or module_of(e.node).startswith(RUNTIME)]:
            message = (
                f"This name comes from `fsdp_migrate.runtime`, but `{to}` accepts only torch's own. Import it from "
                "`torch.distributed.fsdp`."
            )
            yield Found(OPTION, node, Action.MANUAL, message)
            continue
        places: list[ast.AST] = [each.node for each in homes]
        if not places:
            places = [node]
        for place in places:
            said.setdefault(place, []).append(node)
    for place, nodes in said.items():
        to = stays[nodes[0]]
        names = ", ".join(sorted({last_name(node) for node in nodes}))
        # Accelerate's FSDP2 asks whether a policy is torch's own.
        is_done = to.startswith("accelerate.")
        if is_done:
            message = f"Still imported from torch, because `{to}` accepts only torch's own. Nothing has to be done."
            yield Found(RULE, place, Action.RUNTIME, message, names)
        else:
            message = (
                f"This is passed to `{to}`, which uses FSDP1 itself and accepts only FSDP1's options. Change it together "
                f"with `{to}`."
            )
            yield Found(RULE, place, Action.MANUAL, message, names)


def _first(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _is_of_runtime(statements: Sequence[ImportChange], needed: Iterable[Import]) -> bool:
    """Whether a file imports the runtime, by statements as they will be and by new ones."""
    modules = {need.module for need in needed}
    for statement in statements:
        modules |= {module for module, _ in statement.move.values()}
        gone = statement.move.keys() | statement.drop
        if not {alias.asname or alias.name for alias in statement.node.names} <= gone:
            modules.add(module_of(statement.node))
    return any(module.startswith("fsdp_migrate") for module in modules)


def _is_of_torch(context: Context, statement: ImportChange) -> bool:
    """Whether a statement imports FSDP1 of torch's; policies are torch's own in every form."""
    node = statement.node
    if isinstance(node, ast.Import):
        return bool(statement.move)
    module = node.module or ""
    if module.startswith(RUNTIME):
        return False
    if context.form == "torch" and not module.endswith(".wrap"):
        return any(fsdp1_name(f"{module}.{alias.name}") for alias in node.names)
    return bool(statement.move or statement.drop)


def _statements(
    context: Context, gone: Collection[ast.AST], own: Collection[ast.AST]
) -> Iterator[ImportChange]:
    """The imports of FSDP1 names, and those that only removed code used."""
    file = context.file
    left = {node.id for node in gone if isinstance(node, ast.Name) and may_go(context, node)}
    imports: list[ast.Import | ast.ImportFrom] = [*file.of(ast.Import), *file.of(ast.ImportFrom)]
    for node in sorted(imports, key=lambda each: each.lineno):
        if node in gone:
            continue
        if node in own or any(
            _binds_fsdp(node, alias) or (alias.asname or alias.name) in left for alias in node.names
        ):
            yield ImportChange(node)


def _binds_fsdp(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether an import binds one of FSDP1's modules, or a public name of FSDP1's, of torch or of the runtime."""
    if isinstance(node, ast.Import):
        return is_module(alias.name)
    module = node.module or ""
    if node.level:
        return False
    if alias.name == "*":
        return is_module(module)
    path = f"{module}.{alias.name}"
    return is_module(path) or fsdp1_name(path) is not None


def _decide(
    context: Context,
    statement: ImportChange,
    gone: Collection[ast.AST],
    stays: Mapping[ast.expr, str],
    needed: Collection[str],
) -> None:
    """Drops the names that edits left without a use, and moves the others to the runtime, but for those that stay."""
    other = {*gone, *stays}
    kept = {each.id for each in stays if isinstance(each, ast.Name)}
    for alias in statement.node.names:
        local = alias.asname or alias.name
        ours = _binds_fsdp(statement.node, alias)
        whole = isinstance(statement.node, ast.ImportFrom) or len(statement.node.names) == 1
        is_gone = whole and is_spent(context, statement.node, local, gone)
        is_gone = is_gone or (ours and bool(gone) and _had_no_use(context, statement.node, alias))
        if is_gone and local not in needed:
            statement.drop.add(local)
        elif not ours:
            continue
        elif context.form == "torch":
            if back := in_torch(statement.node, alias.name):
                statement.move[local] = back
        elif isinstance(statement.node, ast.Import):
            if _leads_to_fsdp1(context, statement.node, local, other):
                statement.move[local] = in_runtime(alias.name), ""
        elif local not in kept and not (kept and _is_unused(context, local)):
            module = statement.node.module or ""
            target = _target(context, module, alias.name)
            is_name = not is_module(f"{module}.{alias.name}")
            if target and (is_name or _leads_to_fsdp1(context, statement.node, local, other)):
                statement.move[local] = target


def _had_no_use(context: Context, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether nothing ever read an import, in torch's form, and no comment on its lines may say that it is for others."""
    local = alias.asname or alias.name
    is_plain = isinstance(node, ast.ImportFrom) and alias.name not in ("*", alias.asname)
    if context.form != "torch" or not is_plain or context.is_for_others(local):
        return False
    remarks = comments(context.file.text[slice(*context.file.lines(node))])
    is_kept = any(is_directive(each) or _FOR_OTHERS.search(each) for each in remarks)
    return not is_kept and _is_unused(context, local)


def _is_unused(context: Context, name: str) -> bool:
    """Whether nothing reads an imported name: beside options for another library it stays as it is."""
    file = context.file
    return name not in file.loads and not context.program.reach.is_read(file, name)


def _leads_to_fsdp1(context: Context, node: ast.AST, local: str, gone: Collection[ast.AST]) -> bool:
    """Whether an FSDP1 name is reached through a module, here or by a file that imports the module from here."""
    scope = context.file.scope_of(node)
    name = local.split(".")[0]
    read = (*context.references, *looked_into(context))
    roots = [root_of(each) for each in read if each not in gone]
    if any(r is not None and r.id == name and sees(context, r, scope, name) for r in roots):
        return True
    return scope is context.file.scope and context.program.reach.is_read(context.file, name)


def _target(context: Context, module: str, name: str) -> tuple[str, str] | None:
    """Where the runtime has a name; None for what comes from there already."""
    if module == "torch.distributed":  # from torch.distributed import fsdp
        return "fsdp_migrate", "runtime"
    if not module.startswith(TORCH) or (context.in_place and module.endswith(".wrap")):
        return None  # the runtime's policies are torch's own
    if not is_module(module):
        return f"{RUNTIME}.wrap", name
    # What torch has in `api` and other modules is in the runtime's package as well.
    is_public = context.in_place and name != "*" and not module.endswith(".wrap")
    if is_public:
        return RUNTIME, name
    return in_runtime(module), name


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, in quotes too."""
    path = text_of(node)
    if isinstance(node, ast.Attribute):
        path = node.attr
    return path.rpartition(".")[2]


def _say(context: Context, statement: ImportChange) -> Iterator[Found]:
    node = statement.node
    names = ", ".join(alias.name for alias in node.names)
    module = module_of(node)
    if isinstance(node, ast.ImportFrom):
        construct = f"{module}: {names}"
    else:
        construct = f"import {names}"
    message = _said(context, statement)
    if statement.move:
        yield Found(RULE, node, Action.RUNTIME, message, construct)
    elif not statement.drop and module.startswith(RUNTIME):
        yield Found(RULE, node, Action.RUNTIME, f"Imported from `{module}`.", construct)
    elif message:
        yield Found(RULE, node, Action.REWRITE, message, construct)


def _said(context: Context, statement: ImportChange) -> str:
    """What becomes of the names of an import, and which are new; "" where nothing changes."""
    node = statement.node
    names = {alias.asname or alias.name: alias.name for alias in node.names}
    moved = [name for local, name in names.items() if local in statement.move]
    gone = [name for local, name in names.items() if local in statement.drop]
    # An import from another module has a line of its own, unless this one shares its line.
    new = {
        name or home
        for home, name in statement.add
        if home == module_of(node) or not context.is_alone(node)
    }
    sentences = []
    if moved:
        where = _quoted(sorted({target for target, _ in statement.move.values()}), " and ")
        sentences.append(f"Now imported from {where}.")
        if len(moved) < len(names):
            sentences = [f"Now imported from {where}: {_quoted(moved)}."]
    if len(gone) == len(names):
        if new:
            return f"Replaced by an import of {_quoted(sorted(new))}: nothing uses the old names any more."
        return _SPENT
    if gone:
        sentences.append(f"No longer imports {_quoted(gone)}, which nothing uses any more.")
    if new:
        sentences.append(f"Now also imports {_quoted(sorted(new))} for the new code.")
    return " ".join(sentences)


def _quoted(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def _edits(
    context: Context,
    statements: list[ImportChange],
    insert: list[tuple[str, str]],
    spelled: dict[ast.expr, str],
) -> list[Edit]:
    file = context.file
    length = context.line_length
    changes = [each for each in statements if each.drop or each.move or each.add]
    edits: list[Edit] = []
    if changes:
        edits += edit_imports(file, changes, length)
    for node, code in spelled.items():
        if isinstance(node, ast.Constant):
            quoted = context.source(node)
            edits.append(context.replace(node, quoted.replace(str(node.value), code)))
        else:
            edits.append(context.rename(node, code))
    if insert:
        edits += insert_first(file, insert, length)
    return edits
