"""Each codemod as a command of LibCST's own runner.

    python -m libcst.tool codemod -x fsdp_migrate.codemods.loop.no_sync.Command train.py

A command sees one file and applies one construct, whatever becomes of the rest of the model. `fsdp-migrate` looks at the
whole project and migrates models whole; use that unless you know why not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import libcst as cst
from libcst.codemod import CodemodCommand

from fsdp_migrate.codemods.apply import apply
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft
from fsdp_migrate.index.models import Models
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Project


class FileCommand(CodemodCommand):
    """Applies one codemod to one file; what it leaves is reported as a warning."""

    codemod: Callable[[Context], Iterable[Draft]]

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        from fsdp_migrate.codemods import constructor, imports

        path = Path(self.context.filename or "module.py")
        module = Module(path, path.name, path.stem, tree.code)
        project = Project([module])
        models = Models(project)
        plans: dict[ast.Call, Plan] = {}
        context = Context(module, project, models, plans)
        for _, call in models.constructors:
            plans[call] = constructor.plan(context, call)
        drafts = list(type(self).codemod(context))
        for draft in drafts:
            if not draft.edits:
                self.warn(f"{draft.rule.code}: {draft.construct}: {draft.message}")
        gone = {node for draft in drafts for region in draft.gone for node in ast.walk(region)}
        needs = [need for draft in drafts for need in draft.needs]
        edits = [edit for draft in drafts for edit in draft.edits]
        places = [place for draft in drafts for place in draft.places]
        if not edits and not places:
            return tree
        written = partial(apply, context.syntax, edits, places=places)
        planned = imports.plan(context, gone, needs, written, whole=False)
        after = apply(context.syntax, [*edits, *planned.edits], planned.insert, places=places)
        return cst.parse_module(after, config=tree.config_for_parsing)


def command(codemod: Callable[[Context], Iterable[Draft]], description: str) -> type[FileCommand]:
    """The LibCST command that applies a codemod's `find`."""
    return type(
        "Command",
        (FileCommand,),
        {"codemod": staticmethod(codemod), "DESCRIPTION": description.strip().splitlines()[0]},
    )
