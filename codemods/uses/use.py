"""A use of a state dict, and the call of torch's function that takes its place."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit import layout
from fsdp_migrate.codemods.edit.imports import is_directive
from fsdp_migrate.codemods.edit.text import comments_between, indentation, step
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.loads import Loads
from fsdp_migrate.codemods.uses.options import MODULE
from fsdp_migrate.findings import Action

if TYPE_CHECKING:
    from fsdp_migrate.codemods.edit.statement import Statement


# The class of the options, in the module of the functions.
OPTIONS = "StateDictOptions"


@dataclass(frozen=True, eq=False)
class Use:
    """A use of a state dict and what it becomes.

    Attributes:
        node: the call that is replaced.
        function: torch's function.
        arguments: its arguments but for the options, in which the names of parts stand for them.
        parts: the code that it goes on with.
        message: what the finding says.
        options: the options, as source; "" for torch's defaults.
        config: the configuration of FSDP1's that says all that the options do, where there is one.
        loads: what becomes of the load behind, where FSDP1's function only made the state; else None.
        needs_user: whether what it becomes may fail, so that the finding needs the user.
    """

    node: ast.Call
    function: str
    arguments: tuple[str, ...]
    parts: dict[str, ast.expr]
    message: str
    options: str = ""
    config: ast.expr | None = None
    loads: Loads | None = None
    needs_user: bool = False

    @property
    def action(self) -> Action:
        """Whether its finding needs the user."""
        if self.needs_user:
            return Action.MANUAL
        return Action.REWRITE

    @property
    def called(self) -> list[ast.expr]:
        """What it no longer calls: also `FSDP.optim_state_dict_to_load` in the call that loads what that returns."""
        kept = {node for part in self.parts.values() for node in ast.walk(part)}
        every = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        return [call.func for call in every if call not in kept]

    @property
    def imports(self) -> tuple[str, ...]:
        """What it needs of torch's module."""
        has_options = self.options.startswith(f"{OPTIONS}(")
        if has_options:
            return (self.function, OPTIONS)
        return (self.function,)

    @property
    def is_on_rank_0(self) -> bool:
        """Whether it gets a model's whole tensors on the CPU of rank 0, and nothing on other ranks."""
        options = f"{OPTIONS}(full_state_dict=True, cpu_offload=True)"
        return self.function == "get_model_state_dict" and self.options == options

    def named(self, names: Mapping[str, str]) -> "Use":
        """The same call, where torch's names are imported under others."""
        return replace(self, function=names[self.function], options=under(names, self.options))

    def behind(self, rule: Rule, of: ast.AST) -> Iterator[Found]:
        """The findings at the load behind it, which changes with another construct."""
        if self.loads is None:
            return
        for statement, message in self.loads.changed:
            yield Found(rule, statement, Action.REWRITE, message, of=of)

    @property
    def _given(self) -> tuple[str, ...]:
        if self.options:
            return (*self.arguments, f"options={self.options}")
        return self.arguments

    def write(self, context: Context, changed: "Statement", moved: int = 0) -> None:
        """Writes the call of torch's function, in a statement whose lines move to the left."""
        file = context.file
        statement = context.file.statement(self.node)
        start, end = file.span(self.node)
        line_start = file.line_starts[self.node.lineno - 1]
        line_end = file.lines(self.node)[1]
        behind = len(file.text[end:line_end].rstrip())
        line = context.line_length - len(indentation(file, statement)) + moved
        room = context.line_length - (start - line_start + behind) + moved
        changed.lose([each for each in comments_between(file, start, end) if is_directive(each)])
        if self.loads is not None:
            room = line
        written, above = self._with_short_options(context, room, line)
        if self.loads is not None:
            code = above + written._code(context, room, line)
            if self.loads.assigned:
                code += f"\n{self.loads.assigned} = _optimizer.state_dict()"
            changed.instead(code, statement, **self.parts)
        elif "\n" in written._code(context, room, 0) and self._is_deep(context):
            of = "model"
            if "_optimizer" in self.parts:
                of = "optimizer"
            name = context.local(f"{of}_state_dict", self.node)
            name = changed.new_name(name, statement)
            changed.replace(self.node, name)
            code = written._code(context, line - len(f"{name} = "), line)
            changed.before(statement, f"{above}{name} = {code}", **self.parts)
        else:
            changed.replace(self.node, written._code(context, room, line), **self.parts)
            if above:
                changed.before(statement, above.removesuffix("\n"))

    def _with_short_options(self, context: Context, room: int, line: int) -> tuple["Use", str]:
        """The call with its options under a name, and the statement that gives it, where the call has a line an argument.

        Otherwise the call as it is, and no statement.
        """
        statement = context.file.statement(self.node)
        code = self._code(context, room, line)
        is_long = code.count("\n") > 3 and not hasattr(statement, "body")
        if not is_long or "(" not in self.options or not context.is_alone(statement):
            return self, ""
        name = options_name(context, self.node, self.options, self.function)
        short = replace(self, options=name)
        above = f"{name} = {options_code(context, self.options, line - len(f'{name} = '))}\n"
        if above.count("\n") + short._code(context, room, line).count("\n") < code.count("\n"):
            return short, above
        return self, ""

    def _code(self, context: Context, room: int, line: int) -> str:
        sources = {name: context.source(part) for name, part in self.parts.items()}
        return layout.call(
            self.function,
            self._given,
            room=room,
            line=line,
            step=step(context.file),
            sources=sources,
        )

    def _is_deep(self, context: Context) -> bool:
        """Whether the call is inside of an expression that evaluates it once, whatever the rest is."""
        node: ast.AST = self.node
        for parent in context.file.ancestors(node):
            if isinstance(parent, ast.stmt):
                is_value = isinstance(parent, _WITH_VALUE) and parent.value is node
                return node is not self.node and is_value
            if isinstance(parent, ast.IfExp | ast.BoolOp | ast.Lambda | ast.NamedExpr):
                return False
            if isinstance(parent, ast.comprehension) and parent.iter is not node:
                return False
            if hasattr(parent, "generators") and parent.generators[0] is not node:
                return False
            node = parent
        return False


def written(context: Context, use: Use) -> list[Edit]:
    """The edits that write one use, with those of the load behind it."""
    changed = context.statement(context.file.statement(use.node))
    use.write(context, changed)
    if use.loads is not None:
        behind = use.loads.edits
    else:
        behind = ()
    return [*changed.edits(), *[make() for make in behind]]


_WITH_VALUE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


def local_names(context: Context, uses: Iterable[Use], at: ast.AST) -> dict[str, str]:
    """The names by which a place calls torch's functions and options: `torch_` in front of one that means something else."""
    names = {}
    for name in sorted({name for use in uses for name in use.imports} | {OPTIONS}):
        means_it = context.means(name, at, f"{MODULE}.{name}")
        names[name] = name
        if not means_it:
            names[name] = context.free(f"torch_{name}", at)
    return names


def with_options(uses: Iterable[Use], options: str, name: str) -> list[Use]:
    """The uses with a variable for the options that several have."""
    found = []
    for use in uses:
        if use.options == options:
            use = replace(use, options=name)
        found.append(use)
    return found


def imports(uses: Iterable[Use], names: Mapping[str, str], at: ast.AST) -> tuple[Import, ...]:
    """The imports of what uses call by these names."""
    needed = sorted({name for use in uses for name in use.imports})
    found = []
    for name in needed:
        if names[name] == name:
            found.append(Import(MODULE, name, at))
        else:
            found.append(Import(MODULE, f"{name} as {names[name]}", at))
    return tuple(found)


def under(names: Mapping[str, str], options: str) -> str:
    """Options by the name that their class has in a place."""
    is_written_out = options.startswith(f"{OPTIONS}(")
    if is_written_out:
        return names[OPTIONS] + options.removeprefix(OPTIONS)
    return options


def options_name(context: Context, at: ast.AST, code: str, function: str) -> str:
    """The name of options in a function, which has another one for each."""
    names = context.program.kept.setdefault("names of options", {})
    functions = [n for n in context.file.ancestors(at) if isinstance(n, ast.FunctionDef)]
    outermost = [*functions][-1:]
    own = names.setdefault(f"{context.file.path}:{[each.lineno for each in outermost]}", {})
    if code not in own:
        wanted = "options"
        if wanted in own.values():
            wanted = "save_options"
            if "set_" in function:
                wanted = "load_options"
        name = context.local(wanted, at)
        while name in own.values():
            name += "_"
        own[code] = name
    found: str = own[code]
    return found


def options_code(context: Context, options: str, room: int) -> str:
    """Options as they are laid out in an assignment."""
    function, _, inside = options.removesuffix(")").partition("(")
    return layout.call(
        function, inside.split(", "), room=room, line=context.line_length, step=step(context.file)
    )
