"""Strategies that become booleans where they are chosen: `self.strategy = ShardingStrategy.FULL_SHARD` in one of two branches.

Strategies with the same mesh differ in one thing, whether parameters are freed after forward. What carries the value is
renamed `reshard_after_forward`: a local variable, an attribute of `self`, or a parameter that no file of the project passes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.conditions import HYBRID, KEEPING, Choice, negated
from fsdp_migrate.codemods.constructor.construction import DIRECT, Construction
from fsdp_migrate.codemods.constructor.flow import Flow, default_of
from fsdp_migrate.codemods.edit.text import is_alone
from fsdp_migrate.facts.file import File, given
from fsdp_migrate.facts.scopes import Parameter

_ENUM = "ShardingStrategy"
_NEW = "reshard_after_forward"
_RENAMED = (
    f"Renamed to `{_NEW}`: it is now a boolean, whether units free their parameters after forward."
)
_PARAMETER = (
    f"This parameter is renamed to `{_NEW}`, which is a boolean. No call in the project passes it; one elsewhere that passes "
    "`sharding_strategy` gets `TypeError`."
)


@dataclass(eq=False)
class Freed:
    """A strategy as the boolean that says whether units free their parameters after forward.

    Attributes:
        file: where the strategy is chosen and read.
        name: the boolean at the constructor, as source.
        values: the expressions that choose the strategy, each with what takes its place.
        names: what carries the value, each with what takes its place.
        is_hybrid: whether the mesh replicates across nodes.
        message: what the findings at the names say.
    """

    file: File
    name: str
    values: dict[ast.expr, str] = field(default_factory=dict)
    names: dict[ast.expr | ast.arg, str] = field(default_factory=dict)
    is_hybrid: bool = False
    message: str = _RENAMED


def freed(construction: Construction, value: ast.expr, flow: Flow) -> Freed | None:
    """The boolean that a strategy becomes; None if something else is read of it, or decides the mesh."""
    file = construction.context.file
    if construction.kind != DIRECT or [each.node for each in flow.carriers] != [value]:
        return None
    if _NEW in file.text:
        return None
    match value:
        case ast.Attribute() if not flow.unknown:
            found = _of_attribute(construction, value)
        case ast.Name() if flow.unknown or len(flow.ends) == 1:
            found = _of_parameter(construction, value)
        case ast.Name():
            found = _of_variable(construction, value)
        case _:
            found = None
    if found is not None and _translated(construction, found):
        return found
    return None


def _translated(construction: Construction, found: Freed) -> bool:
    """Notes what takes the place of the expressions; returns whether the file shows it, and one mesh."""
    meshes = set()
    for made in found.values:
        choice = Choice(construction, made, _ENUM, found.file.source(made))
        keeps = choice.is_among(KEEPING)
        if isinstance(keeps, bool):
            found.values[made] = str(not keeps)
        else:
            found.values[made] = negated(keeps)
        meshes.add((choice.is_among(HYBRID), choice.is_among(("NO_SHARD",))))
    sources = set(found.values.values())
    if meshes not in ({(True, False)}, {(False, False)}) or any(_ENUM in each for each in sources):
        return False
    found.is_hybrid = (True, False) in meshes
    return found.message == _PARAMETER or (not sources <= {"True"} and not sources <= {"False"})


def _of_variable(construction: Construction, value: ast.Name) -> Freed | None:
    """A local variable that assignments alone bind."""
    file = construction.context.file
    variable = file.variable(value)
    if variable is None or variable.scope is file.scope:
        return None
    if len(variable.assigned) != len(variable.bindings):
        return None
    found = Freed(file, _NEW, names={value: _NEW})
    for each in variable.assigned:
        match file.parents[each.target]:
            case ast.Assign(targets=[ast.Name() as target], value=made) as statement:
                if not is_alone(file, statement):
                    return None
                found.values[made] = ""
                found.names[target] = _NEW
            case _:
                return None
    return found


def _of_attribute(construction: Construction, value: ast.Attribute) -> Freed | None:
    """An attribute of `self` that the file assigns and gives to constructors, and that nothing else names."""
    context = construction.context
    file = context.file
    word = rf"\b{value.attr}\b"
    own = frozenset((str(file.path),))
    tree = context.program.tree
    if not tree.having(word.encode()) <= own or tree.having(_NEW.encode()):
        return None
    owner = file.source(value.value)
    name = f"{owner}.{_NEW}"
    found = Freed(file, name)
    uses = file.attributes.get(value.attr, ())
    if len(re.findall(word, file.text)) != len(uses):
        return None
    for use in uses:
        if not isinstance(use.value, ast.Name) or use.value.id != owner:
            return None
        found.names[use] = name
        match file.parents[use]:
            case ast.Assign(targets=[target], value=made) as statement if target is use:
                if not is_alone(file, statement):
                    return None
                found.values[made] = ""
            case _ if not isinstance(use.ctx, ast.Load):
                return None
    return found


def _of_parameter(construction: Construction, value: ast.Name) -> Freed | None:
    """A parameter with a member as its default, of a project of which no other code names the enum."""
    context = construction.context
    file = context.file
    match file.bindings(value):
        case [Parameter(function=ast.FunctionDef() as function, argument=argument)]:
            pass
        case _:
            return None
    default = default_of(function, argument.arg)
    program = context.program
    having = program.tree.having
    words = [rf"\b{each}\b".encode() for each in (function.name, argument.arg)]
    passing = frozenset.intersection(*map(having, words))
    own = frozenset((str(file.path),))
    if default is None or not having(_ENUM.encode()) | passing <= own:
        return None
    if any(given(call, function, argument.arg) for _, call in program.calls(function.name)):
        return None
    inside = {*ast.walk(default)}
    new = _NEW
    if argument.annotation is not None:
        inside |= {*ast.walk(argument.annotation)}
        new = f"{_NEW}: bool"
    named = [node for node, name in context.references.items() if name == _ENUM]
    if not inside.issuperset(named) or (argument.annotation is not None and len(named) != 2):
        return None
    reads = file.reads(value)
    # The rest is in strings and comments, or passes it under its name.
    rest = len(re.findall(rf"\b{argument.arg}\b", file.text)) - len(reads) - 1
    if rest > sum(1 for each in construction.call.keywords if each.arg == argument.arg):
        return None
    names: dict[ast.expr | ast.arg, str] = {argument: new, **dict.fromkeys(reads, _NEW)}
    return Freed(file, _NEW, {default: ""}, names, message=_PARAMETER)
