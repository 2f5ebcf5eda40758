"""One file as a rule sees it: its facts, what its names mean, and how to edit it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.edit import text
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.facts.file import NEWLINE, File, last_name, place_of, root_of
from fsdp_migrate.facts.models import Models, models_of
from fsdp_migrate.facts.names import CLASS, fsdp1_name
from fsdp_migrate.facts.nodes import all_are, has_star
from fsdp_migrate.facts.origins import Value, value_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned, Imported, Scope
from fsdp_migrate.line_length import of_code, of_project

if TYPE_CHECKING:
    from fsdp_migrate.codemods.edit.statement import Statement

_SILENCING = re.compile(r"#\s*fsdp-migrate:\s*ignore\b(?:\[([A-Za-z0-9,\s]*)\])?")
Ask = Callable[["Context", Callable[[str], bool]], Iterable[Found]]


@dataclass(eq=False)
class Context:
    """What a rule may ask about the file that it looks at.

    Attributes:
        file: its facts.
        program: the files of the run.
        form: auto, bridge or torch: what `--form` asks for.
        writes: whether edits are written; if not, their code is not laid out.
        target: the torch release that the program runs on, as in (2, 8).
        ask: asks the modules of rules whose names are taken about another view of the file.
    """

    file: File
    program: Program
    _: KW_ONLY
    form: str = "auto"
    writes: bool = True
    target: tuple[int, ...] = (2, 8)
    ask: Ask | None = None

    @property
    def in_place(self) -> bool:
        """Whether constructs leave FSDP1's interface: not under `--form bridge`, where imports alone change."""
        return self.form != "bridge"

    @cached_property
    def models(self) -> Models:
        """Which expressions can hold a model of FSDP1."""
        return models_of(self.program)

    def source(self, node: ast.AST) -> str:
        """The source of a node as it is in the file."""
        return self.file.source(node)

    def fsdp1(self, expression: ast.expr) -> str | None:
        """The FSDP1 name that an expression can mean: `FullyShardedDataParallel` for `FSDP`, `fsdp.wrap.wrap` is `wrap`."""
        return self.program.fsdp1(expression, self.file)

    def member(self, expression: ast.expr) -> tuple[str, str] | None:
        """`(ShardingStrategy, NO_SHARD)` for what means that attribute of an FSDP1 name."""
        if not isinstance(expression, ast.Attribute):
            return None
        owner = self.fsdp1(expression.value)
        if owner is None:
            return None
        return (owner, expression.attr)

    def dotted(self, expression: ast.expr) -> frozenset[str]:
        """The dotted paths outside the program that an expression can mean."""
        return self.program.dotted(expression, self.file)

    def can_be_model(self, expression: ast.expr) -> bool:
        """Whether an expression can hold a model that FSDP1 wrapped."""
        return self.models.can_hold(expression, self.file)

    def value(self, expression: ast.expr) -> Value | None:
        """The one expression that gives a name its value, in this file or another; None if that is not known."""
        return value_of(self.program, self.file, expression)

    @cached_property
    def silenced(self) -> Silenced:
        """Whether a comment silences a rule at a node."""
        return Silenced(self.file.text)

    def stays(self, name: ast.expr, rule: Rule) -> bool:
        """Whether comments silence the imports of a name: then it stays torch's."""
        bound = self.file.bindings(root_of(name) or name)
        imports = [each.statement for each in bound if isinstance(each, Imported)]
        return bool(imports) and all(self.silenced(rule, each) for each in imports)

    @cached_property
    def line_length(self) -> int:
        """That of the target's own formatter, else of the file's own lines."""
        length = self.program.once(_of_project, self.file.path.absolute().parent)
        if length is None:
            return of_code(self.file.text)
        return length

    @cached_property
    def references(self) -> dict[ast.expr, str]:
        """The outermost names and dotted names of the file that mean an FSDP1 name, with the name.

        `FSDP.state_dict_type` is a reference `FSDP`; `fsdp.wrap.wrap` is one reference as a whole.
        """
        known = self.program.references  # several contexts may look at one file
        if self.file not in known:
            known[self.file] = self._references()
        return known[self.file]

    def _references(self) -> dict[ast.expr, str]:
        found: dict[ast.expr, str] = {}
        file = self.file
        words = self.program.fsdp1_words
        if file.stars:
            names = words | file.aliases
        else:
            names = self.program.fsdp1_aliases(file)
        nodes: list[ast.expr] = []
        for word in words:
            nodes += file.attributes.get(word, ())
        for alias in names:
            nodes += file.loads.get(alias, ())
        for node in nodes:
            name = self.fsdp1(node)
            if name is not None:
                found[node] = name
        return dict(sorted(found.items(), key=lambda item: (item[0].lineno, item[0].col_offset)))

    @cached_property
    def quoted(self) -> dict[ast.Constant, str]:
        """Annotations in quotes that mean an FSDP1 name: other text that reads like one is only text."""
        found = {}
        for node in self.file.of(ast.Constant):
            if isinstance(node.value, str) and ("FSDP" in node.value or CLASS in node.value):
                name = None
                if self.is_annotation(node):
                    name = self.fsdp1(node)
                if name is not None:
                    found[node] = name
        return found

    def is_for_others(self, name: str) -> bool:
        """Whether other files may read a name of this one: of a package, in `__all__`, or imported from here by name."""
        return self.file.is_package or self.is_asked_for(name)

    def is_asked_for(self, name: str) -> bool:
        """Whether other files read a name of this one: in `__all__`, or imported from here by name."""
        exported = any(
            isinstance(each.value, str) and each.value == name and self._is_in_all(each)
            for each in self.file.of(ast.Constant)
        )
        return exported or self.program.reach.is_read(self.file, name)

    def removable(self, assigned: Assigned) -> ast.stmt | None:
        """The statement of an assignment to a name, if it does nothing else and no other file may read the name."""
        target = assigned.target
        statement = self.file.statement(assigned.target)
        if not isinstance(target, ast.Name) or assigned.path or not self.is_alone(statement):
            return None
        at_top = self.file.scope_of(target) is self.file.scope
        several = isinstance(statement, ast.Assign) and len(statement.targets) > 1
        if several or (at_top and self.is_for_others(target.id)):
            return None
        return statement

    def _is_in_all(self, constant: ast.Constant) -> bool:
        for node in self.file.ancestors(constant):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                if isinstance(node, ast.Assign):
                    targets = node.targets
                else:
                    targets = [node.target]
                return "__all__" in ast.dump(targets[0])
        return False

    def is_annotation(self, node: ast.expr) -> bool:
        """Whether a name is in an annotation of a parameter, a result or a variable, or the type of a `cast`."""
        child: ast.AST = node
        for parent in self.file.ancestors(node):
            if isinstance(parent, ast.arg | ast.AnnAssign):
                return parent.annotation is child
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                return parent.returns is child
            if isinstance(parent, ast.Call):
                cast = "typing.cast" in self.dotted(parent.func)
                return cast and bool(parent.args) and parent.args[0] is child
            if not isinstance(parent, ast.Subscript | ast.Tuple | ast.BinOp):
                return False
            if isinstance(parent, ast.Subscript) and last_name(parent.value) == "Literal":
                return False
            child = parent
        return False

    def call_of(self, function: ast.AST) -> ast.Call | None:
        """The call of a function, where it is called and no value."""
        call = self.file.parents[function]
        if isinstance(call, ast.Call) and call.func is function:
            return call
        return None

    def replace(self, node: ast.AST, code: str) -> Edit:
        """The edit that puts code in a node's place."""
        return Edit(*self.file.span(node), code)

    def rename(self, node: ast.expr, name: str) -> Edit:
        """The edit that puts another dotted name in one's place, the comments between its parts behind it."""
        kept = text.comments_between(self.file, *self.file.span(node))
        # Only brackets have room for comments, and for line breaks.
        behind = "".join(f"  {comment}{text.newline(self.file)}" for comment in kept)
        return self.replace(node, name + behind)

    def remove(self, statement: ast.stmt) -> Edit:
        """The edit that takes a statement away; its comments stay."""
        return text.remove_statement(self.file, statement)

    def remove_or_pass(self, statement: ast.stmt) -> Edit:
        """As `remove`, but for one whose block has only imports beside it, which may be taken away, too: it becomes `pass`."""
        others = [each for each in self.file.block(statement) if each is not statement]
        is_top = isinstance(self.file.parents[statement], ast.Module)
        if others and not is_top and all_are(others, ast.Import | ast.ImportFrom):
            return self.replace_statement(statement, "pass", as_it_is=True)
        return self.remove(statement)

    def statement(self, node: ast.AST) -> Statement:
        """The statement around a node on LibCST's nodes, which can be changed there; call it where edits are made."""
        from fsdp_migrate.codemods.edit.statement import Statement

        return Statement(self.file, node)

    @property
    def _layout(self) -> int | None:
        if self.writes:
            return self.line_length
        return None

    def replace_statement(self, statement: ast.stmt, code: str, *, as_it_is: bool = False) -> Edit:
        """The edit that puts other statements in a statement's place, formatted unless `as_it_is`."""
        length = self._layout
        if as_it_is:
            length = None
        return text.replace_statement(self.file, statement, code, length)

    def insert_above(self, statement: ast.stmt, code: str) -> Edit:
        """The edit that puts statements above a statement."""
        return text.insert_above(self.file, statement, code, self._layout)

    def is_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines to itself, so that others can take its place."""
        return text.is_alone(self.file, statement)

    def free(self, wanted: str, at: ast.AST) -> str:
        """`wanted`, or a longer name that means nothing yet where a node is, and that no code reads from an `import *`."""
        scope = self.file.scope_of(at)
        loads = self.file.loads
        while scope.lookup(wanted) is not None or any(
            self.file.scope_of(load).lookup(wanted) is None for load in loads.get(wanted, ())
        ):
            wanted += "_"
        return wanted

    def local(self, wanted: str, at: ast.AST) -> str:
        """As `free`, but a function may use a name of its file again that it does not read, and a loop its own targets."""
        loop = self.file.parents.get(at)
        if isinstance(loop, ast.For) and loop.iter is at:
            names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            if wanted in names:
                return wanted
        function = self.file.function(at)
        if function is None or wanted in self.file.scope_of(at).bindings:
            return self.free(wanted, at)
        for read in self.file.loads.get(wanted, ()):
            if function in self.file.ancestors(read):
                return self.free(wanted, at)
        return wanted

    def means(self, name: str, at: ast.AST, dotted: str) -> bool:
        """Whether a name can be written at a place for an import of `dotted`: it is free there, or means just that.

        An import of FSDP1's name will be one of the runtime's.
        """
        found = self.file.scope_of(at).lookup(name)
        if found is None:
            return True
        if fsdp1_name(dotted) is not None:
            imported = [b for b in found.bindings if isinstance(b, Imported)]
            known = {fsdp1_name(f"{b.module}.{b.member}") for b in imported}
            return len(imported) == len(found.bindings) and known == {name}
        meanings = self.dotted_at(name, found.scope)
        return meanings == frozenset({dotted}) or are_of_torch(dotted, meanings)

    def dotted_at(self, name: str, scope: Scope) -> frozenset[str]:
        """The dotted paths that a name means in a scope."""
        for load in self.file.loads.get(name, ()):
            if self.file.scope_of(load).lookup(name) == scope.lookup(name):
                return self.dotted(load)
        found = scope.lookup(name)
        paths = set[str]()
        if found:
            for binding in found.bindings:
                if isinstance(binding, Imported) and binding.member:
                    paths.add(f"{binding.module}.{binding.member}")
                elif isinstance(binding, Imported):
                    paths.add(binding.module)
        return frozenset(paths)


def are_of_torch(dotted: str, meanings: Iterable[str]) -> bool:
    """Whether the paths that a name can mean are all those of one name of torch, which older releases have elsewhere."""
    name = dotted.rpartition(".")[2]
    paths = [path for path in meanings if path.startswith("torch.distributed.")]
    return bool(paths) and all(path.rpartition(".")[2] == name for path in paths)


def _of_project(_: Program, folder: Path) -> int | None:
    return of_project(folder)


class Silenced:
    """The comments of one file that silence rules on their line, `# fsdp-migrate: ignore[FSDP002]`, and which did."""

    def __init__(self, text: str) -> None:
        self.comments: dict[int, re.Match[str]] = {}
        if "fsdp-migrate:" in text:
            for line, code in enumerate(NEWLINE.split(text), 1):
                if found := _SILENCING.search(code):
                    self.comments[line] = found
        self.used: set[int] = set()

    def __call__(self, rule: Rule, node: ast.AST) -> bool:
        """Whether a comment silences a rule on a node's first line."""
        line = place_of(node)[0]
        if line not in self.comments:
            return False
        codes = self.codes(line)
        is_silenced = not codes or rule.code in codes
        if is_silenced:
            self.used.add(line)
        return is_silenced

    def codes(self, line: int) -> list[str]:
        """The codes that the comment of a line names; none where it silences every rule."""
        return (self.comments[line][1] or "").upper().replace(",", " ").split()


def also(lines: Sequence[int]) -> str:
    """Other lines that a finding is about, in a sentence behind its message; "" if there are none."""
    if not lines:
        return ""
    word = "line"
    if len(lines) > 1:
        word = "lines"
    return f" Also at {word} {', '.join(map(str, lines))}."


def shortened(source: str) -> str:
    """The source of a construct on one line, as a finding names it."""
    line = " ".join(source.split())
    if len(line) <= 48:
        return line
    return f"{line[:45]}..."


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """What a call gives for one parameter, by name or by position."""
    for given in call.keywords:
        if given.arg == name:
            return given.value
    starred = has_star(call)
    if position is None or starred or position >= len(call.args):
        return None
    return call.args[position]


def has_torch(context: Context, at: ast.AST) -> bool:
    """Whether `torch.` can be written at a place: an import binds the name, and nothing else does."""
    found = context.file.scope_of(at).lookup("torch")
    return found is not None and all(
        isinstance(binding, Imported) and binding.member is None and binding.module == "torch"
        for binding in found.bindings
    )
