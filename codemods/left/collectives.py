"""Collectives of c10d that are given a DTensor: a parameter, a gradient, or what a program computes of them."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.norms_over_ranks import is_local_now
from fsdp_migrate.codemods.left.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.parameters import PARTS, Taken, loop_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action

RULE = Rule("FSDP525", "collective")
RULES = (RULE,)

_C10D = re.compile(r"torch\.distributed\.(?:all_|i)?(?:broadcast|gather|reduce|scatter|send)\w*")
# Functions of the program that hand on to c10d, by their names.
_HANDING_ON = re.compile(r"all_(?:gather|reduce)\w*|(?:broadcast|reduce)_tensors?")
_REFUSED = "raises for a DTensor, and this comes from sharded parameters: give it local_shard(p) of the runtime, or what is"
_REFUSED += " computed of that"
_SERVED = "is given what local_shard(p) gives, plain tensors as under FSDP1"
# What gives a number or a plain tensor.
_ENDING = frozenset(
    {"dim", "float", "get_rank", "get_world_size", "int", "item", "len", "local_shard"}
)
_ENDING |= {"full_tensor", "numel", "numpy", "size", "str", "tolist", "to_local", "tensor", "zeros"}


def find(context: Context) -> Iterator[Found]:
    """The calls of c10d, and of functions of such names that hand on to it, with what comes from sharded parameters."""
    if not context.models.shards(context.file):
        return
    for name, calls in context.file.calls.items():
        for call in calls if "object" not in name else ():
            paths, given = context.dotted(call.func), values_given(call)[:1]
            of_c10d = any(_C10D.fullmatch(path) for path in paths)
            if not given or not (of_c10d or (not paths and _HANDING_ON.fullmatch(name))):
                continue
            sources = context.program.once(_Sources, taken(context)).of(given[0], context.file)
            if sources and not is_known_as_whole(context, call):
                local = all(of is context.file and is_local_now(context, n) for n, of in sources)
                action, message = (Action.RUNTIME, _SERVED) if local else (Action.MANUAL, _REFUSED)
                yield Found(RULE, call, action, message, f"{name}(...)")


class _Sources:
    """The sharded parameters and gradients that values are computed of: many collectives lead back to the same ones."""

    def __init__(self, program: Program, from_models: Taken) -> None:
        self.program, self.taken = program, from_models
        self._before: dict[ast.AST, list[tuple[ast.AST, File]]] = {}

    def of(self, value: ast.AST, file: File) -> list[tuple[ast.expr, File]]:
        """Those of one expression, each with its file."""
        found: list[tuple[ast.expr, File]] = []
        seen, pending = {value}, [(value, file)]
        while pending:
            value, file = pending.pop()
            if isinstance(value, ast.Name | ast.Attribute) and self.taken.is_parameter(value, file):
                found.append((value, file))
                continue
            if value not in self._before:
                parts = self._of_name if isinstance(value, ast.Name) else self._parts
                self._before[value] = list(parts(value, file))  # type: ignore[arg-type]
            before = [(node, of) for node, of in self._before[value] if node not in seen]
            seen.update(node for node, _ in before)
            pending += before
        return found

    def _parts(self, value: ast.AST, file: File) -> Iterator[tuple[ast.AST, File]]:
        """The expressions whose values go into one."""
        parts: list[ast.AST] = []
        if isinstance(value, ast.Attribute):
            parts = [value.value] if value.attr in PARTS else []
        elif isinstance(value, ast.Call):
            made = self.program.definition(value.func, file)
            if last_name(value.func) in _ENDING:
                return
            if made is not None:
                for statement in made.file.of(ast.Return):
                    if made.file.function(statement) is made.node and statement.value is not None:
                        yield statement.value, made.file
                return
            owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
            parts = [*value.args, *owner]
        elif isinstance(value, ast.Subscript):
            parts = [value.value]
        elif isinstance(value, ast.ListComp | ast.GeneratorExp):
            parts = [value.elt]
        elif not isinstance(value, ast.Constant | ast.Lambda | ast.Compare):
            parts = [*ast.iter_child_nodes(value)]
        yield from ((part, file) for part in parts)

    def _of_name(self, name: ast.Name, file: File) -> Iterator[tuple[ast.expr, File]]:
        """What a name can be bound to, and what is added to it or put into it."""
        loop = loop_of(file, name)
        if loop is not None:
            yield loop[1], file
        yield from self.taken.values(name, file)
        yield from ((value, file) for value in _added(name, file))


def _added(name: ast.Name, file: File) -> Iterator[ast.expr]:
    """What is added to a variable, or put into it."""
    own = file.variable(name)
    for statement in file.of(ast.AugAssign):
        target = statement.target
        if getattr(target, "id", "") == name.id and file.variable(target) == own:
            yield statement.value
    for read in file.reads(name):
        item = file.parents[read]
        assign = file.parents[item]
        if isinstance(item, ast.Subscript) and isinstance(assign, ast.Assign):
            if item in assign.targets:
                yield assign.value
