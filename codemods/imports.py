"""Imports of FSDP1 names: edited where they stand, under the guard and in the scope that they have.

Runs last. Names that the edits took away are dropped, names that stay come from the runtime, and names that the edits need
take the place of those that went.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from fsdp_migrate.codemods import enable_wrap
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.import_statement import name_and_local
from fsdp_migrate.codemods.edit.imports import (
    ImportEdit,
    edit_import_line,
    edit_import_suite,
    lost_comments,
)
from fsdp_migrate.codemods.import_fallbacks import retargeted
from fsdp_migrate.codemods.import_uses import (
    exported,
    imports_behind,
    is_package,
    is_respelled,
    is_spare,
    root_of,
    used_imports,
)
from fsdp_migrate.codemods.names import moves
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Need, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Assigned, Imported, Scope
from fsdp_migrate.index.names import PACKAGE, fsdp1_name
from fsdp_migrate.index.order import block_of
from fsdp_migrate.index.project import is_fallback

RULE = Rule(
    "FSDP001",
    "fsdp1-import",
    "imports of FSDP1 names become imports of what took their place",
    """Every import is edited where it stands: its guard (`try`, a test of the version, TYPE_CHECKING), its scope, its layout
and its comments stay. Names that nothing uses any more go, options that stay come from `fsdp_migrate.runtime`, and what FSDP2
needs takes their place. A name that a package re-exports, or that something still uses, stays.""",
    (
        Example(
            "in place, comments kept",
            """\
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,  # see config.yaml
)

model = FSDP(model, sharding_strategy=ShardingStrategy[config.strategy])
""",
            """\
from fsdp_migrate.runtime import (
    ShardingStrategy,  # see config.yaml
    shard_model,
)

model = shard_model(model, sharding_strategy=ShardingStrategy[config.strategy])
""",
        ),
        Example(
            "inside a function",
            """\
def wrap(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return FSDP(model)
""",
            """\
def wrap(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)
""",
        ),
        Example(
            "a fallback",
            """\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None

if FSDP is not None and isinstance(model, FSDP):
    print(model)
""",
            """\
try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:
    FSDPModule = None

if FSDPModule is not None and isinstance(model, FSDPModule):
    print(model)
""",
        ),
        Example(
            "a module that goes on being used",
            """\
import torch.distributed.fsdp.wrap as wrapping

policy = wrapping.size_based_auto_wrap_policy
""",
            message="still in use",
        ),
        Example(
            "an import that nothing uses",
            """\
import torch
from torch.distributed.fsdp import CPUOffload
""",
            """\
import torch
""",
        ),
    ),
)
RULES = (RULE,)


@dataclass(eq=False)
class _Statement:
    """One import statement that binds FSDP1 names, and what becomes of it."""

    node: ast.Import | ast.ImportFrom
    scope: Scope
    drop: set[str] = field(default_factory=set)
    move: dict[str, tuple[str, str]] = field(default_factory=dict)
    add: list[tuple[str, str]] = field(default_factory=list)

    @property
    def survives(self) -> bool:
        """Whether a name stays that is imported from where it is."""
        locals_ = {alias.asname or alias.name for alias in self.node.names}
        return (
            bool(self.add)
            or bool(locals_ - self.drop - set(self.move))
            or "FullyShardedDataParallel" in {alias.name for alias in self.node.names}
        )

    @property
    def reaches_runtime(self) -> bool:
        """Whether a name of the runtime's is imported at this place."""
        return any(module == RUNTIME for module, _ in [*self.move.values(), *self.add])

    @property
    def edit(self) -> ImportEdit:
        return ImportEdit(frozenset(self.drop), self.move, tuple(dict.fromkeys(self.add)))


@dataclass(frozen=True)
class ImportPlan:
    """What becomes of a file's imports.

    Attributes:
        insert: (module, name) pairs for which there is no statement to edit.
    """

    drafts: list[Draft]
    edits: list[Edit]
    insert: list[tuple[str, str]]


def plan(
    context: Context,
    gone: Collection[ast.AST],
    needs: Iterable[Need],
    written: Callable[[], str],
    *,
    whole: bool,
) -> ImportPlan:
    """Decides on every import of an FSDP1 name, and on others whose last use goes away.

    Args:
        gone: nodes that the edits of other codemods take away.
        needs: names that these edits use.
        written: gives the file's text after these edits.
        whole: every model around is migrated, so options that stay can come from the runtime.
    """
    needs = list(dict.fromkeys(needs))
    statements = _statements(context)
    used = used_imports(context, gone)
    drafts = list(_modules_in_use(context, gone))
    for statement in statements:
        for alias in statement.node.names:
            draft = _decide(context, statement, alias, used, whole=whole)
            if draft is not None:
                drafts.append(draft)
    insert = _place(context, statements, needs)
    _gather(context, statements)
    fallbacks = list(_fallbacks(context, statements, needs))
    spare = list(_spare(context, gone, used, needs))
    read = _names_read(written()) if spare else frozenset()
    for statement, binding in spare:
        if (binding.alias.asname or binding.alias.name) in read:
            continue
        known = [other for other in statements if other.node is statement.node]
        statements += [] if known else [statement]
        (known or [statement])[0].drop.add(binding.alias.asname or binding.alias.name)
        if binding.module != "functools":
            message = "nothing uses it any more"
            drafts.append(Draft(RULE, binding.alias, Action.REWRITE, message, binding.alias.name))
    for fallback, _ in fallbacks:
        construct = context.source(context.module.statement(fallback.target))
        message = "the fallback is for the name that is imported now"
        drafts.append(Draft(RULE, fallback.target, Action.REWRITE, message, construct))
    edits = [*_edits(context, statements), *(edit for _, edit in fallbacks)]
    return ImportPlan(drafts, edits, insert)


def _statements(context: Context) -> list[_Statement]:
    found: dict[ast.AST, _Statement] = {}
    for scope in context.module.scopes.values():
        for bindings in scope.bindings.values():
            for binding in bindings:
                if isinstance(binding, Imported) and _fsdp1_of(context, binding):
                    found.setdefault(binding.statement, _Statement(binding.statement, scope))
    return sorted(found.values(), key=lambda statement: statement.node.lineno)


def _fsdp1_of(context: Context, binding: Imported) -> str | None:
    """The FSDP1 name that an import binds, from torch or through a module of the project."""
    if binding.member is None:
        return None
    direct = fsdp1_name(f"{binding.module}.{binding.member}")
    if direct is not None:
        return direct
    inside = context.project.find(binding.module, context.module)
    if inside is None or inside is context.module:
        return None
    return context.project.fsdp1_at(binding.member, inside)


def _modules_in_use(context: Context, gone: Collection[ast.AST]) -> Iterator[Draft]:
    """Imports of FSDP1's modules, and stars, through which a name is still reached: they cannot change."""
    module = context.module
    references = context.references()
    known = set(references)
    found: dict[ast.alias, None] = {}
    for reference in references:
        if reference in gone or module.parents[reference] in known:
            continue
        root = root_of(reference)
        bound = module.lookup(root.id, module.scope_of(root)) if root is not None else None
        if bound is not None:
            found.update((b.alias, None) for b in bound[1] if is_package(b))
        else:
            stars = (node for source, node in module.stars if source.startswith(PACKAGE))
            found.update((node.names[0], None) for node in stars)
    for alias in found:
        yield Draft(RULE, alias, Action.MANUAL, "stays: still in use", alias.name)


def _spare(
    context: Context, gone: Collection[ast.AST], used: set[Imported], needs: Collection[Need]
) -> Iterator[tuple[_Statement, Imported]]:
    """Imports whose every use went away: FSDP1's modules, `functools`, which policies needed, and the project's values."""
    module = context.module
    elsewhere = {need.at for need in needs if need.module == RUNTIME}
    for local, bindings in module.scope.bindings.items():
        loads = module.loads.get(local, ())
        if (
            not loads
            or not all(load in gone for load in loads)
            or any(is_respelled(context, load, elsewhere) for load in loads)
            or context.project.imports_of(module, local)
            or local in exported(context)
        ):
            continue
        for binding in bindings:
            if isinstance(binding, Imported) and binding not in used:
                if is_spare(context, binding):
                    yield _Statement(binding.statement, module.scope), binding


def _names_read(text: str) -> frozenset[str]:
    """The names that a program mentions: what went away in one place may have been written anew in another."""
    return frozenset(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))


def _decide(
    context: Context, statement: _Statement, alias: ast.alias, used: set[Imported], *, whole: bool
) -> Draft | None:
    local = alias.asname or alias.name
    bound = [
        binding
        for binding in statement.scope.bindings.get(local, ())
        if isinstance(binding, Imported) and binding.alias is alias
    ]
    name = _fsdp1_of(context, bound[0]) if bound else None
    if name is None:
        return None
    binding = bound[0]
    from_torch = fsdp1_name(f"{binding.module}.{binding.member}") is not None
    if binding not in used and not _is_public(context, statement, local):
        statement.drop.add(local)
        return Draft(RULE, alias, Action.REWRITE, "nothing uses it any more", name)
    if not from_torch:
        return None  # the file that it comes from decides
    moving = moves(name) or enable_wrap.moves(context.project, context.module, name)
    if moving and whole:
        statement.move[local] = (RUNTIME, name)
        return Draft(RULE, alias, Action.RUNTIME, f"{name} stays, and comes from {RUNTIME}", name)
    reason = "still in use" if binding in used else "others may import it from here"
    return Draft(RULE, alias, Action.MANUAL, f"stays: {reason}", name)


def _is_public(context: Context, statement: _Statement, local: str) -> bool:
    """Whether others can reach the name through this file: it is exported, or imported elsewhere and still used there."""
    module = context.module
    if isinstance(statement.scope.node, ast.ClassDef):
        return any(
            attribute.attr == local
            for other in context.project.modules
            for attribute in other.attributes
        )
    if statement.scope is not module.scope:
        return False
    if module.is_package or local in exported(context):
        return True
    return any(
        imported is not None or local in other.loads
        for other, imported in context.project.imports_of(module, local)
    )


def _fallbacks(
    context: Context, statements: list[_Statement], needs: Iterable[Need]
) -> Iterator[tuple[Assigned, Edit]]:
    """`FSDP = None`, where the import of FSDP fails: the names that take FSDP's place need it as much."""
    heirs: dict[Assigned, dict[str, None]] = {}
    for need in needs:
        root = root_of(need.at) if need.at is not None else None
        bound = context.module.lookup(root.id, context.module.scope_of(root)) if root else None
        if bound is None or _already_imported(context, need):
            continue
        for binding in bound[1]:
            if isinstance(binding, Assigned) and not binding.path and is_fallback(binding.value):
                heirs.setdefault(binding, {})[name_and_local(need.name)[1]] = None
    for binding, names in heirs.items():
        assert isinstance(binding.target, ast.Name)
        local, scope = binding.target.id, context.module.scope_of(binding.target)
        importing = [s for s in statements if s.scope is scope and _binds(s, local)]
        if importing:
            kept = [] if all(local in s.drop for s in importing) else [local]
            yield binding, retargeted(context, binding.target, [*kept, *names])


def _binds(statement: _Statement, local: str) -> bool:
    return any((alias.asname or alias.name) == local for alias in statement.node.names)


def _place(
    context: Context, statements: list[_Statement], needs: Iterable[Need]
) -> list[tuple[str, str]]:
    """Hands each needed name to an import statement; returns those for which there is none."""
    insert: list[tuple[str, str]] = []
    for need in needs:
        if _already_imported(context, need):
            continue
        statement = _statement_for(context, statements, need)
        if statement is None:
            insert.append((need.module, need.name))
        else:
            statement.add.append((need.module, need.name))
    return list(dict.fromkeys(insert))


def _statement_for(context: Context, statements: list[_Statement], need: Need) -> _Statement | None:
    """The statement that takes the name: the one that imported what it replaces, else one at the top of the file."""
    if need.module in {"dataclasses", "functools"}:
        return None  # these go where such imports stand
    if need.at is not None:
        root = root_of(need.at)
        if root is not None:
            imports = imports_behind(context, root.id, context.module.scope_of(root))
            bound = {binding.statement for binding in imports}
            for statement in statements:
                if statement.node in bound:
                    return _beside(context, statements, statement, need.module)
    at_top = [s for s in statements if context.module.parents[s.node] is context.module.tree]
    same = [
        s for s in at_top if isinstance(s.node, ast.ImportFrom) and s.node.module == need.module
    ]
    return next(iter(same or at_top), None)


def _beside(
    context: Context, statements: list[_Statement], statement: _Statement, module: str
) -> _Statement:
    """A statement of the same block that imports from a module already, else the given one.

    Never one further down: what the new name replaces may be used in between.
    """
    for other in _of_block(context, statements, statement):
        if (
            isinstance(other.node, ast.ImportFrom)
            and other.node.module == module
            and other.survives
            and other.node.lineno <= statement.node.lineno
        ):
            return other
    return statement


def _of_block(
    context: Context, statements: list[_Statement], statement: _Statement
) -> list[_Statement]:
    block = block_of(context.module.parents[statement.node], statement.node)
    return [other for other in statements if other.node in block]


def _gather(context: Context, statements: list[_Statement]) -> None:
    """Brings names that come from the runtime together in the first statement of a block that needs some."""
    for statement in statements:
        home = next(
            s
            for s in _of_block(context, statements, statement)
            if s is statement or s.reaches_runtime
        )
        if home is statement:
            continue
        for local, (module, name) in list(statement.move.items()):
            if module == RUNTIME and local == name:
                del statement.move[local]
                statement.drop.add(local)
                home.add.append((module, name))
        home.add += [added for added in statement.add if added[0] == RUNTIME]
        statement.add = [added for added in statement.add if added[0] != RUNTIME]


def _already_imported(context: Context, need: Need) -> bool:
    """Whether the top of the file binds the name to the same thing already."""
    name, local = name_and_local(need.name)
    bindings = context.module.scope.bindings.get(local, [])
    return any(
        isinstance(binding, Imported)
        and (binding.module, binding.member) == (need.module, name)
        and context.module.parents[binding.statement] is context.module.tree
        for binding in bindings
    )


def _edits(context: Context, statements: list[_Statement]) -> Iterator[Edit]:
    by_line: dict[cst.SimpleStatementLine | cst.SimpleStatementSuite, dict[int, ImportEdit]] = {}
    for statement in statements:
        if not (statement.drop or statement.move or statement.add):
            continue
        line, position = context.syntax.import_at(statement.node)
        by_line.setdefault(line, {})[position] = statement.edit
    for line, edits in by_line.items():
        yield Edit(line, _ImportLine(edits, context.line_length))


class _ImportLine:
    """Edits one line, or one-line block, of imports."""

    def __init__(self, edits: dict[int, ImportEdit], line_length: int) -> None:
        self.edits = edits
        self.line_length = line_length

    def __call__(self, updated: cst.CSTNode) -> Edited | Statements:
        if isinstance(updated, cst.SimpleStatementSuite):
            return Edited(edit_import_suite(updated, self.edits))
        assert isinstance(updated, cst.SimpleStatementLine)
        lines = edit_import_line(updated, self.edits, self.line_length)
        return Statements(lines, () if lines else tuple(lost_comments(updated, self.edits)))
