"""A use of a state dict, and the call of torch's function that takes its place."""

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit import layout
from fsdp_migrate.codemods.edit.text import indentation, step

if TYPE_CHECKING:
    from fsdp_migrate.codemods.edit.statement import Statement


@dataclass(frozen=True, eq=False)
class Use:
    """A use of a state dict and what it becomes.

    Attributes:
        node: the call that is replaced.
        function: torch's function.
        arguments: its arguments, in which the names of parts stand for them.
        parts: the code that it goes on with.
        message: what the finding says.
        load: the statement `optimizer.load_state_dict(state)` behind one that makes the state, where there is one.
        assigned: the name that the statement of the call gives its result to, "" where that is not used.
    """

    node: ast.Call
    function: str
    arguments: tuple[str, ...]
    parts: dict[str, ast.expr]
    message: str
    load: ast.stmt | None = None
    assigned: str = ""

    @property
    def imports(self) -> tuple[str, ...]:
        """What it needs of torch's module."""
        has_options = any("StateDictOptions(" in each for each in self.arguments)
        return (self.function, "StateDictOptions") if has_options else (self.function,)

    @property
    def is_on_rank_0(self) -> bool:
        """Whether it gets a model's whole tensors on the CPU of rank 0, and nothing on other ranks."""
        options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
        return self.function == "get_model_state_dict" and self.arguments[-1] == options

    def write(self, context: Context, changed: "Statement", moved: int = 0) -> None:
        """Writes the call of torch's function, in a statement whose lines move to the left."""
        file, statement = context.file, context.file.statement(self.node)
        start, end = file.span(self.node)
        line_start, line_end = file.line_starts[self.node.lineno - 1], file.lines(self.node)[1]
        behind = len(file.text[end:line_end].rstrip())
        indent = len(indentation(file, statement))
        is_loaded = self.load is not None or self.assigned
        room = context.line_length - (indent if is_loaded else start - line_start + behind)
        sources = {name: context.source(part) for name, part in self.parts.items()}
        fits = layout.call(
            self.function, self.arguments, room=room + moved, line=0, sources=sources
        )
        code = layout.call(
            self.function,
            self.arguments,
            room=room + moved,
            line=context.line_length - indent + moved,
            step=step(file),
            sources=sources,
        )
        if is_loaded:
            self._write_load(changed, statement, code)
        elif "\n" in fits and self._is_deep(context):
            of = "optimizer" if "_optimizer" in self.parts else "model"
            name = changed.new_name(context.local(f"{of}_state_dict", self.node))
            changed.replace(self.node, name)
            changed.before(statement, f"{name} = {code}", **self.parts)
        else:
            changed.replace(self.node, code, **self.parts)

    def _write_load(self, changed: "Statement", statement: ast.stmt, code: str) -> None:
        if self.assigned:
            code += f"\n{self.assigned} = _optimizer.state_dict()"
        changed.instead(code, statement, **self.parts)
        if self.load is not None and self.load is not statement:
            changed.remove(self.load)

    def _is_deep(self, context: Context) -> bool:
        """Whether the call is inside of an expression that evaluates it once, whatever the rest is."""
        node: ast.AST = self.node
        for parent in context.file.ancestors(node):
            if isinstance(parent, ast.stmt):
                is_value = getattr(parent, "value", None) is node
                return node is not self.node and is_value
            if isinstance(parent, ast.IfExp | ast.BoolOp | ast.Lambda | ast.NamedExpr):
                return False
            if isinstance(parent, ast.comprehension) and parent.iter is not node:
                return False
            if hasattr(parent, "generators") and parent.generators[0] is not node:
                return False
            node = parent
        return False
