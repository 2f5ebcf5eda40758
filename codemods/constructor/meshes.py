"""Strategies that become meshes where they are made: `strategy = ShardingStrategy.NO_SHARD` in a function that chooses one.

A strategy that frees parameters after forward is its mesh alone: None for all ranks, or a mesh of two dimensions. What
carries the value is renamed `mesh`. As a mesh needs the process group, only functions are looked into that the constructor's
own function calls.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import DIRECT, ON_CPU, Construction
from fsdp_migrate.codemods.constructor.flow import Flow, defined
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.origins import Value, value_of
from fsdp_migrate.facts.program import Program

DEVICE_MESH = "torch.distributed.device_mesh"
DIMS = 'mesh_dim_names=("replicate", "shard")'
_MEMBERS = ("FULL_SHARD", "HYBRID_SHARD", "NO_SHARD")
_STARTS = "init_process_group"
_WORLD = re.compile(r"\bget_world_size\(\)|[\"']WORLD_SIZE[\"']")


@dataclass(eq=False)
class Chosen:
    """A strategy that functions choose, as meshes.

    Attributes:
        name: that of the mesh at the constructor.
        statements: the assignments that become others, each with its file, and the source of those.
        names: the names that carry the value, each with its file and its new name.
    """

    name: str = ""
    statements: dict[ast.Assign, tuple[File, str]] = field(default_factory=dict)
    names: dict[ast.Name, tuple[File, str]] = field(default_factory=dict)

    def imports(self, statement: ast.Assign) -> tuple[Import, ...]:
        """What an assignment needs."""
        source = self.statements[statement][1]
        needs = []
        if "init_device_mesh" in source:
            needs.append(Import(DEVICE_MESH, "init_device_mesh"))
        if "torch." in source:
            needs.append(Import("torch", ""))
        return tuple(needs)


def chosen(construction: Construction, value: ast.expr, flow: Flow) -> Chosen | None:
    """The meshes that a strategy becomes; None if it cannot be made of meshes alone, or not there."""
    if construction.kind != DIRECT or not isinstance(value, ast.Name) or flow.unknown:
        return None
    if construction.has_mesh:
        return None
    device = construction.value("device_id")
    if device is not None and "cpu" in construction.text(device):
        return None
    members = {_member(construction.context.program, end) for end in flow.ends}
    if len(members) < 2 or not members <= {*_MEMBERS} or not _is_in_time(construction, flow):
        return None
    found = Chosen()
    for carrier in flow.carriers:
        if isinstance(carrier.node, ast.Name) and not _renamed(construction, carrier, found):
            return None
    if value not in found.names:
        return None
    found.name = found.names[value][1]
    if all(_translated(construction, end, found) for end in flow.ends):
        return found
    return None


def _member(program: Program, end: Value) -> str:
    match end.node:
        case ast.Constant(value=None):
            return "FULL_SHARD"
        case ast.Attribute(value=enum, attr=name):
            if program.fsdp1(enum, end.file) == "ShardingStrategy":
                return name
            return ""
    return ""


def _is_in_time(construction: Construction, flow: Flow) -> bool:
    """Whether the process group can be there: functions choose that the constructor's own calls, and none behind starts it."""
    context = construction.context
    file = context.file
    own = context.file.function(construction.call)
    calls = [each for each in flow.carriers if isinstance(each.node, ast.Call)]
    if own is None or len(calls) != 1:
        return False
    call = calls[0]
    if call.file is not file or file.function(call.node) is not own:
        return False
    choosing = [each.node for each in defined(context.program, file, call.node)]  # type: ignore[arg-type]
    if any(end.file.function(end.node) not in choosing for end in flow.ends):
        return False
    between = [
        each
        for each in file.of(ast.Call)
        if file.function(each) is own and call.node.lineno < each.lineno < construction.call.lineno
    ]
    return not any(_starts(context.program, file, each) for each in between)


def _starts(program: Program, file: File, call: ast.Call) -> bool:
    """Whether a call starts the process group, by itself or in the function of the program that it calls."""
    sources = [each.file.source(each.node) for each in defined(program, file, call)]
    return _STARTS in " ".join([file.source(call.func), *sources])


def _renamed(construction: Construction, carrier: Value, found: Chosen) -> bool:
    """Adds a local variable with all that names it; returns whether it is one, and assignments alone bind it."""
    file = carrier.file
    name = carrier.node
    assert isinstance(name, ast.Name)
    variable = file.variable(name)
    if variable is None or variable.scope is file.scope:
        return False
    if len(variable.assigned) != len(variable.bindings):
        return False
    context = Context(file, construction.context.program, form=construction.context.form)
    new = context.local("mesh", name)
    targets = [each.target for each in variable.assigned]
    for node in (*targets, *file.reads(name)):
        if not isinstance(node, ast.Name):
            return False
        found.names[node] = (file, new)
    return True


def _translated(construction: Construction, end: Value, found: Chosen) -> bool:
    """Adds the assignment that makes a strategy; returns whether it is one, with nothing else in it."""
    file = end.file
    statement = file.parents.get(end.node)
    context = Context(file, construction.context.program, form=construction.context.form)
    match statement:
        case ast.Assign(targets=[ast.Name() as target], value=value) if value is end.node:
            pass
        case _:
            return False
    dist = _distributed(context, statement)
    device = '"cuda"'
    if ON_CPU.search(construction.context.file.text):
        device = '"cuda" if torch.cuda.is_available() else "cpu"'
    if not context.is_alone(statement) or target not in found.names or not dist:
        return False
    if not context.means("init_device_mesh", statement, f"{DEVICE_MESH}.init_device_mesh"):
        return False
    name = found.names[target][1]
    match _member(construction.context.program, end):
        case "FULL_SHARD":
            source = f"{name} = None"
        case "NO_SHARD":
            source = f"{name} = init_device_mesh({device}, ({dist}.get_world_size(), 1), {DIMS})"
        case _:
            per_node = context.local("per_node", statement)
            shape = f"({dist}.get_world_size() // {per_node}, {per_node})"
            source = (
                f"{per_node} = torch.cuda.device_count()\n"
                f"{name} = init_device_mesh({device}, {shape}, {DIMS})"
            )
    found.statements[statement] = (file, source)
    return True


def _distributed(context: Context, at: ast.AST) -> str:
    """How a file calls torch.distributed at a place; "" if it cannot."""
    for name in ("dist", "distributed"):
        if context.dotted_at(name, context.file.scope_of(at)) == {"torch.distributed"}:
            return name
    if context.means("torch", at, "torch"):
        return "torch.distributed"
    return ""


def is_of_all_ranks(construction: Construction, value: ast.expr) -> bool:
    """Whether a mesh is None, which means all ranks, or made of as many ranks as there are."""
    flow = construction.flow(value)
    meshes = [
        each
        for each in (*flow.ends, *flow.outside)
        if _member(construction.context.program, each) != "FULL_SHARD"
    ]
    return not flow.hidden and all(_has_all_ranks(construction, each) for each in meshes)


def _has_all_ranks(construction: Construction, mesh: Value) -> bool:
    program = construction.context.program
    file = mesh.file
    match mesh.node:
        case ast.Call(func=function, args=[_, ast.Tuple(elts=[ranks])]):
            made = value_of(program, file, ranks)
            is_world = made is not None and _WORLD.search(file.source(made.node)) is not None
            return is_world and f"{DEVICE_MESH}.init_device_mesh" in program.dotted(function, file)
    return False
