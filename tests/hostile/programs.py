"""Runs the whole engine on a program, and checks what must hold for every program whatever it says."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.codemods.apply import comments
from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.index.module import Assigned, Binding, Module
from fsdp_migrate.index.project import is_fallback
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
POLICY = (
    f"{FSDP}from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nfrom m import Block, Net\n"
)


@dataclass(frozen=True)
class Outcome:
    """What a run made of one program."""

    before: str
    after: str
    report: Report

    @property
    def changed(self) -> bool:
        return bool(self.report.changes)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.report.findings}

    @property
    def by_hand(self) -> set[str]:
        """The codes of what is left to be done by hand."""
        return {f.code for f in self.report.findings if f.action.value == "manual"}

    @property
    def errors(self) -> list[str]:
        return [problem.message for problem in self.report.errors]


def run(text: str | bytes, options: Options | None = None) -> Outcome:
    """One program, given as text or as the bytes of its file."""
    data = text if isinstance(text, bytes) else text.encode()
    source = Source(Path("/nowhere/example.py"), "example.py", data)
    report = analyse_source(source, options)
    after = report.changes[0].after if report.changes else data
    decoded = after.decode(source.encoding)
    return Outcome(source.text, decoded, report)


def run_project(
    folder: Path, files: Mapping[str, str], options: Options | None = None
) -> dict[str, Outcome]:
    """Several files together, by their paths."""
    paths = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        paths.append(path)
    report = analyse(paths, options)
    changed = {change.path: change.after.decode() for change in report.changes}
    outcomes = {}
    for name, text in files.items():
        own = Report(
            findings=[f for f in report.findings if f.path.endswith(name)],
            errors=[e for e in report.errors if e.path.endswith(name)],
            changes=[c for c in report.changes if c.path == folder / name],
        )
        outcomes[name] = Outcome(text, changed.get(folder / name, text), own)
    return outcomes


def broken(outcome: Outcome) -> list[str]:
    """What is wrong with a result, whatever the program was; nothing if all is well."""
    found: list[str] = []
    try:
        compile(outcome.after, "<after>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f"does not parse: {error}"]
    lost = Counter(comments(outcome.before)) - Counter(comments(outcome.after))
    found += [f"lost comment {comment}" for comment in lost]
    again = run(outcome.report.changes[0].after if outcome.changed else outcome.after)
    if again.after != outcome.after:
        found.append("a second run changes it again")
    undefined = unbound(outcome.after) - unbound(outcome.before)
    undefined -= assigned(
        outcome.before
    )  # `model = FSDP(model)` binds a name that `fully_shard(model)` only reads
    found += [f"{name} is not defined" for name in sorted(undefined)]
    early = used_before_bound(outcome.after) - used_before_bound(outcome.before)
    found += [f"{name} is used above its definition" for name in sorted(early)]
    twice = shadowing_imports(outcome.after) - shadowing_imports(outcome.before)
    found += [f"the import of {name} means another thing than before" for name in sorted(twice)]
    return found


def unbound(text: str) -> set[str]:
    """Names that a program reads (or deletes) and nothing in it binds."""
    module = _module(text)
    names = {
        name
        for name, loads in module.loads.items()
        for load in loads
        if module.lookup(name, module.scope_of(load)) is None
    }
    bound = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    stored = {
        node.id
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    deleted = {
        node.id
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)
    }
    return (names | (deleted - bound - stored)) - set(dir(builtins))


def assigned(text: str) -> set[str]:
    """Names that a program assigns itself."""
    return {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def used_before_bound(text: str) -> set[str]:
    """Names that the top level reads above the first line that binds them."""
    module = _module(text)
    first: dict[str, int] = {}
    for node in ast.walk(module.tree):
        if module.scope_of(node) is not module.scope:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                first[name] = min(first.get(name, node.lineno), node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first[node.name] = min(first.get(node.name, node.lineno), node.lineno)
    return {
        name
        for name, loads in module.loads.items()
        for load in loads
        if module.scope_of(load) is module.scope and load.lineno < first.get(name, 0)
    }


def shadowing_imports(text: str) -> set[str]:
    """Names that one scope imports from two places, or imports and defines; a fallback (`NAME = None`) aside."""
    module = _module(text)
    return {
        name
        for scope in module.scopes.values()
        for name, bindings in scope.bindings.items()
        if len({getattr(b, "module", id(b)) for b in bindings if not _is_fallback(b)}) > 1
        and any(hasattr(b, "alias") for b in bindings)
    }


def _is_fallback(binding: Binding) -> bool:
    return isinstance(binding, Assigned) and is_fallback(binding.value)


def _module(text: str) -> Module:
    return Module(Path("/nowhere/example.py"), "example.py", "nowhere.example", text)
