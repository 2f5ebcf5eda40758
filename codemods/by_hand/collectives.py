"""Collectives of c10d that are given a DTensor: a parameter, a gradient, or what a program computes of them."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.norms_over_ranks import is_local_now
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.origins import returned
from fsdp_migrate.facts.parameters import PARTS, Taken, loop_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Opaque
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP525", "collective", Severity.RAISES)

_NAME = re.compile(r"(?:all_|i)?(?:broadcast|gather|reduce|scatter|send)\w*")
_C10D = re.compile(rf"torch\.distributed\.{_NAME.pattern}")
# Functions of the program that hand on to c10d, by their names.
_HANDING_ON = re.compile(r"all_(?:gather|reduce)\w*|(?:broadcast|reduce)_tensors?")
_REFUSED = (
    "This call raises under FSDP2, because its argument is computed from sharded parameters and is a DTensor. Compute "
    "the argument from `p.to_local()` instead."
)
_SERVED = (
    "Unchanged: its argument is now computed from the local shard, so it is a plain tensor as under FSDP1. Nothing has "
    "to be done."
)
# What gives a number or a plain tensor.
_ENDING = frozenset(
    {"dim", "float", "get_rank", "get_world_size", "int", "item", "len", "local_shard"}
)
_ENDING |= {"full_tensor", "numel", "numpy", "size", "str", "tolist", "to_local", "tensor", "zeros"}


@codemod(words=("reduce", "broadcast", "gather", "scatter"))
def find(context: Context) -> Iterator[Found]:
    """The calls of c10d, and of functions of such names that hand on to it, with what comes from sharded parameters."""
    if not context.models.shards(context.file):
        return
    for name, calls in context.file.calls.items():
        may_be_meant = _NAME.match(name) or name in context.file.aliases
        if may_be_meant and "object" not in name:
            for call in calls:
                paths = context.dotted(call.func)
                given = values_given(call)[:1]
                of_c10d = any(map(_C10D.fullmatch, paths))
                if not given or not (of_c10d or (not paths and _HANDING_ON.fullmatch(name))):
                    continue
                sources = context.program.once(_Sources, taken(context)).of(given[0], context.file)
                local = [of is context.file and is_local_now(context, node) for node, of in sources]
                if local and not is_known_as_whole(context, call):
                    if all(local):
                        served = (Action.RUNTIME, _SERVED)
                    else:
                        served = (Action.MANUAL, _REFUSED)
                    yield Found(RULE, call, *served, f"{name}(...)")


class _Sources:
    """The sharded parameters and gradients that values are computed of."""

    def __init__(self, program: Program, from_models: Taken) -> None:
        self.program = program
        self.taken = from_models
        # What no parameter goes into: most collectives lead back to the same values, and to none.
        self._plain: set[ast.AST] = set()

    def of(self, value: ast.AST, file: File) -> list[tuple[ast.expr, File]]:
        """Those of one expression, each with its file."""
        found: list[tuple[ast.expr, File]] = []
        seen = {value}
        pending = [(value, file)]
        while pending:
            value, file = pending.pop()
            if isinstance(value, ast.Name | ast.Attribute) and self.taken.is_parameter(value, file):
                found.append((value, file))
                continue
            for part, of in self._parts(value, file):
                if part not in seen and part not in self._plain:
                    seen.add(part)
                    pending.append((part, of))
        if not found:
            self._plain |= seen
        return found

    def _parts(self, value: ast.AST, file: File) -> Iterator[tuple[ast.AST, File]]:
        """The expressions whose values go into one."""
        parts: list[ast.AST] = []
        if isinstance(value, ast.Name):
            yield from self._of_name(value, file)
        elif isinstance(value, ast.Attribute):
            if value.attr in PARTS:
                parts = [value.value]
            else:
                parts = []
        elif isinstance(value, ast.Call):
            yield from self._of_call(value, file)
        elif isinstance(value, ast.Subscript):
            parts = [value.value]
        elif isinstance(value, ast.ListComp | ast.GeneratorExp):
            parts = [value.elt]
        elif not isinstance(value, ast.Constant | ast.Lambda | ast.Compare):
            parts = [*ast.iter_child_nodes(value)]
        for part in parts:
            if not isinstance(part, ast.Constant):
                yield (part, file)

    def _of_call(self, call: ast.Call, file: File) -> Iterator[tuple[ast.AST, File]]:
        """What the program's function returns, or what any other is given."""
        if last_name(call.func) in _ENDING:
            return
        made = self.program.definition(call.func, file)
        if made is None:
            if isinstance(call.func, ast.Attribute):
                owner = [call.func.value]
            else:
                owner = []
            for value in (*call.args, *owner):
                yield value, file
            return
        for each in returned(made):
            yield each.value, each.file

    def _of_name(self, name: ast.Name, file: File) -> Iterator[tuple[ast.expr, File]]:
        """What a name can be bound to, and what is added to it or put into it."""
        loop = loop_of(file, name)
        if loop is not None:
            yield loop[1], file
        found = self.taken.origins.of_name(name, file)
        for each in found:
            if not each.path:
                yield each.value, each.file
        for binding in file.bindings(name):
            if isinstance(binding, Opaque) and isinstance(binding.node, ast.AugAssign):
                yield binding.node.value, file
        for read in file.reads(name):
            item = file.parents[read]
            assign = file.parents[item]
            if isinstance(item, ast.Subscript) and isinstance(assign, ast.Assign):
                if item in assign.targets:
                    yield assign.value, file
