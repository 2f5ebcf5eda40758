"""Mutation testing: which small changes of a module no test notices.

    .venv/bin/python benchmarks/mutants.py runtime/auto_wrap.py --sample 20 -- tests/runtime/test_units.py

A change is one that a slip of the hand makes: another comparison, a condition or a keyword left out, an entry missing from
a table, a name misspelt, a statement forgotten. Messages, docstrings and annotations stay as they are. Each mutant is
written into a copy of the package, and pytest is run on what follows ``--`` until a test fails; the copy as it is must pass.
Figures and what survives: ``docs/results/mutation.md``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
# Of these folders only what is assigned at the top is changed: names and their translations.
TABLES = ("codemods/uses", "codemods/libraries/configuration")
WHOLE = ("codemods/libraries/configuration/table.py",)

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# What a person reads, and what only a type checker does.
MESSAGES = {"warn", "warn_once", "Stays", "Rule", "TypeVar", "cast", "NamedTuple"}
KEPT_DECORATORS = {"overload", "dataclass", "abstractmethod"}


class Mutant(NamedTuple):
    """One change: ``text`` in place of the bytes from ``start`` to ``end``."""

    module: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class Finder(ast.NodeVisitor):
    """Collects the mutants of a module."""

    def __init__(self, path: Path) -> None:
        self.module = path.relative_to(ROOT).as_posix()
        self.source = path.read_bytes()
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []

    def add(self, node: ast.AST, kind: str, text: str) -> None:
        start = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        self.found.append(Mutant(self.module, node.lineno, kind, start, end, text))  # type: ignore[attr-defined]

    def swap(self, node: ast.expr, kind: str, **fields: object) -> None:
        """Adds the expression with other fields."""
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        self.add(node, kind, f"({ast.unparse(other)})")

    # What is left alone #

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.decorator(decorator)
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(default)
        self.body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.decorator(decorator)
        self.body(node)

    def visit_Module(self, node: ast.Module) -> None:
        self.body(node)

    def body(self, node: ast.FunctionDef | ast.ClassDef | ast.Module) -> None:
        for statement in node.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                self.visit(statement)

    def decorator(self, node: ast.expr) -> None:
        if name_of(node.func if isinstance(node, ast.Call) else node) not in KEPT_DECORATORS:
            self.add(node, "decorator removed", "(lambda each: each)")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if not isinstance(node.slice, ast.Tuple):
            self.visit(node.slice)

    # Statements #

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "statement removed", "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if name_of(node.targets[0]) == "__all__":
            return
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self.add(node, "statement removed", "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "statement removed", "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "statement removed", "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self.add(node, "statement removed", "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not is_constant(node.value, None):
            self.add(node, "returns None", "return None")
            self.visit(node.value)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if item.optional_vars is None:
                self.add(
                    item.context_expr, "with removed", "__import__('contextlib').nullcontext()"
                )
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.add(node.iter, "no iteration", "()")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.add(node, "break", "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, "continue", "break")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.add(node.type, "another exception", "ZeroDivisionError")
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add(test, "condition removed", "True")
        self.generic_visit(node)

    def condition(self, test: ast.expr) -> None:
        """Negated, where that is not another mutant already."""
        ordered = ast.Lt | ast.LtE | ast.Gt | ast.GtE
        compared = isinstance(test, ast.Compare) and not isinstance(test.ops[0], ordered)
        if not compared and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self.add(test, "condition negated", f"(not ({ast.unparse(test)}))")

    # Expressions #

    def visit_Compare(self, node: ast.Compare) -> None:
        for n, op in enumerate(node.ops):
            ops = [*node.ops[:n], OPERATORS[type(op)](), *node.ops[n + 1 :]]
            self.swap(node, "operator", ops=ops)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.swap(node, "operator", op=OPERATORS[type(node.op)]())
        if len(node.values) > 2:
            for n in range(len(node.values)):
                self.swap(
                    node, "condition removed", values=[*node.values[:n], *node.values[n + 1 :]]
                )
        else:
            for value in node.values:
                self.add(node, "condition removed", f"({ast.unparse(value)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self.swap(node, "operator", op=OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(node, "operator", f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) in MESSAGES:
            return
        for n, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                self.swap(
                    node, "keyword removed", keywords=[*node.keywords[:n], *node.keywords[n + 1 :]]
                )
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "split"
            and isinstance(node.func.value, ast.Constant)
        ):
            self.words(node.func.value)
        self.generic_visit(node)

    def words(self, node: ast.Constant) -> None:
        words = str(node.value).split()
        for n in range(len(words)):
            self.add(node, "entry removed", repr(" ".join(words[:n] + words[n + 1 :])))

    def visit_Dict(self, node: ast.Dict) -> None:
        for n in range(len(node.keys) if len(node.keys) > 1 else 0):
            keys, values = ([*each[:n], *each[n + 1 :]] for each in (node.keys, node.values))
            self.swap(node, "entry removed", keys=keys, values=values)
        self.generic_visit(node)

    def elements(self, node: ast.Set | ast.List | ast.Tuple) -> None:
        simple = ast.Constant | ast.Name | ast.Attribute | ast.Starred
        if len(node.elts) > 1 and all(isinstance(each, simple) for each in node.elts):
            for n in range(len(node.elts)):
                self.swap(node, "entry removed", elts=[*node.elts[:n], *node.elts[n + 1 :]])
        self.generic_visit(node)

    visit_Set = visit_List = elements

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if isinstance(node.ctx, ast.Load):
            self.elements(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, "constant", f" {not value} ")
        elif isinstance(value, int | float):
            self.add(node, "constant", f" {value + 1} ")
        elif isinstance(value, str) and " " not in value.strip("\n") and "\n" not in value:
            self.add(node, "constant", f" {'XX' + value!r} ")


def name_of(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def mutants(path: Path) -> Iterator[Mutant]:
    """The mutants of a module, each with another meaning."""
    finder = Finder(path)
    tree = ast.parse(finder.source)
    if finder.module.startswith(TABLES) and finder.module not in WHOLE:
        tree.body = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    finder.visit(tree)
    seen = {ast.dump(ast.parse(finder.source))}
    for mutant in finder.found:
        changed = ast.dump(ast.parse(mutant.applied(finder.source)))
        if changed not in seen:
            seen.add(changed)
            yield mutant


def copy_package(folder: Path) -> Path:
    """The package as it installs; later runs compile only what has changed."""
    package = folder / "fsdp_migrate"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fsdp_migrate", package, ignore=ignore)
    for name in ("codemods", "runtime", "docs/rules"):
        shutil.copytree(ROOT / name, package / name, ignore=ignore)
    return package


def passes(folder: Path, tests: list[str], seconds: float | None) -> bool:
    """Whether the tests pass on a copy of the package, which is the one that is imported."""
    check = (
        f"import fsdp_migrate, sys; sys.exit(not fsdp_migrate.__file__.startswith({str(folder)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    python = [sys.executable, "-P"]
    subprocess.run([*python, "-c", check], env=environment, check=True)
    command = [*python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    options = {"env": environment, "cwd": ROOT, "stdout": subprocess.DEVNULL}
    try:
        return subprocess.run(command, timeout=seconds, **options).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Prints the mutants that survive, and how many there are; 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, help="how many mutants, at random; else all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=300, help="a run that takes longer has noticed"
    )
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, tests = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    found = [mutant for path in options.modules for mutant in mutants(path.resolve())]
    chosen = random.Random(options.seed).sample(
        found, min(options.sample or len(found), len(found))
    )
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        package = copy_package(Path(name))
        if not passes(Path(name), tests, None):
            sys.exit("the tests fail without a mutant")
        for mutant in chosen:
            place = package / mutant.module.removeprefix("fsdp_migrate/")
            original = place.read_bytes()
            place.write_bytes(mutant.applied(original))
            if passes(Path(name), tests, options.seconds):
                survivors += 1
                was = original[mutant.start : mutant.end].decode()
                print(
                    f"{mutant.module}:{mutant.line}: {mutant.kind}: {was} -> {mutant.text.strip()}"
                )
            place.write_bytes(original)
    print(f"{survivors} of {len(chosen)} survive; {len(found)} mutants in all")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
