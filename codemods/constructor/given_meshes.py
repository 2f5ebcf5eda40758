"""`process_group` and `device_mesh`: the ranks that a program chooses itself, as `mesh=`."""

import ast

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.devices import device_type, distributed
from fsdp_migrate.codemods.constructor.flow import default_of
from fsdp_migrate.codemods.constructor.meshes import DEVICE_MESH, DIMS, is_of_all_ranks
from fsdp_migrate.codemods.constructor.named_meshes import without_names
from fsdp_migrate.codemods.constructor.sharding import branches, mesh_of_all
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.nodes import is_none
from fsdp_migrate.facts.scopes import Parameter

GROUP = Rule("FSDP106", "process-group")
MESH = Rule("FSDP107", "device-mesh")

NAMED = "The dimensions of the mesh now have names, which `fully_shard` requires to replicate over one of them."
NAMELESS = f"But `fully_shard` raises, because the dimensions of this mesh have no names: add `{DIMS}` where it is created."


def process_group(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mesh=`, of the group's ranks."""
    context = construction.context
    call = construction.call
    if code.hybrid is not False:
        return _pair_of_groups(construction, value, code)
    if isinstance(value, ast.Tuple):
        raise AtRunTime
    can_be_none = construction.can_be_none(value) or _is_parameter(construction, value)
    device = device_type(construction, code)
    group = construction.text(value)
    code.imports.append(Import(DEVICE_MESH, "DeviceMesh"))
    if code.whole is False and not can_be_none:
        code.shared["mesh"] = f"DeviceMesh.from_group({group}, {device})"
        return "Replaced by `mesh`, a device mesh over the ranks of this group."
    if not group.isidentifier():
        name = context.local("group", call)
        code.above.append(f"{name} = {group}")
        group = name
    mesh = context.local("mesh", call)
    made = f"{mesh} = DeviceMesh.from_group({group}, {device})"
    dist = distributed(construction, code)
    alone = context.local("alone", call)
    ranks = context.local("ranks", call)
    replicated = [
        f"{alone} = {dist}.new_group([{dist}.get_rank()], use_local_synchronization=True)",
        f"{ranks} = torch.tensor({dist}.get_process_group_ranks({group})).view(-1, 1)",
        f"{mesh} = DeviceMesh.from_group([{group}, {alone}], {device}, mesh={ranks}, {DIMS})",
    ]
    if code.whole is not False and can_be_none:
        raise AtRunTime
    if can_be_none:
        code.above.append(f"{made} if {group} is not None else None")
    else:
        code.above += branches(made, [(code.whole, replicated)])
        code.imports.append(Import("torch", ""))
    code.shared["mesh"] = mesh
    return "Replaced by `mesh`, a device mesh over the ranks of this group."


def _pair_of_groups(construction: Construction, value: ast.expr, code: Code) -> str:
    """The mesh of FSDP1's pair of groups, to shard over and to replicate over, which a mesh has the other way round."""
    context = construction.context
    call = construction.call
    dist = distributed(construction, code)
    device = device_type(construction, code)
    group = construction.text(value)
    names = ("shard_group", "replicate_group", "rows", "mesh")
    shard, replicate, rows, mesh = [context.local(name, call) for name in names]
    pair = [
        f"{shard}, {replicate} = {group}",
        f"{rows} = [None] * {dist}.get_world_size()",
        f"{dist}.all_gather_object({rows}, tuple({dist}.get_process_group_ranks({shard})))",
        f"{mesh} = DeviceMesh.from_group([{replicate}, {shard}], {device}, "
        f"mesh=torch.tensor(sorted(set({rows}))), {DIMS})",
    ]
    if code.hybrid is not True:
        pair = [
            f"if {code.hybrid}:",
            *[f"    {line}" for line in pair],
            "else:",
            f"    {mesh} = DeviceMesh.from_group({group}, {device})",
        ]
    code.above += pair
    code.imports += [Import(DEVICE_MESH, "DeviceMesh"), Import("torch", "")]
    code.shared["mesh"] = mesh
    return "Replaced by a `mesh` of two dimensions, built from the two groups: replicate and shard."


def _is_parameter(construction: Construction, value: ast.expr) -> bool:
    """Whether a value is a function's parameter that may be left out, or be None."""
    bindings = construction.context.file.bindings(value)
    parameters = [each for each in bindings if isinstance(each, Parameter)]
    defaults = [default_of(each.function, each.argument.arg) for each in parameters]
    return any(map(is_none, defaults))


def device_mesh(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mesh=`, as the program makes it, but with a dimension to replicate over where NO_SHARD is chosen."""
    source = construction.text(value)
    needs_names = ""
    nameless = None
    if code.hybrid is not False:
        nameless = without_names(construction, value)
    if nameless is not None:
        if nameless.node is value and source.endswith(")"):
            source = f"{source.removesuffix(')')}, {DIMS})"
            needs_names = f" {NAMED}"
        elif nameless.node in code.rewritten.named_meshes:
            needs_names = f" {NAMED}"
        else:
            needs_names = f" {NAMELESS}"
    if code.whole is False:
        code.shared["mesh"] = source
        return f"Renamed to `mesh`.{needs_names}"
    mesh = construction.context.local("mesh", construction.call)
    if code.whole is True and is_of_all_ranks(construction, value):
        made = f"{mesh} = init_device_mesh({device_type(construction, code)}"
        code.above += mesh_of_all(construction, False, True, made, code)
        code.imports.append(Import(DEVICE_MESH, "init_device_mesh"))
        code.shared["mesh"] = mesh
        return (
            "Replaced by a mesh of the same ranks in two dimensions, the second of size 1: every rank keeps whole "
            "parameters."
        )
    ranks = f"{mesh}.mesh.view(-1, 1)"
    replicated = f"{mesh} = DeviceMesh({mesh}.device_type, {ranks}, {DIMS})"
    code.above.append(f"{mesh} = {source}")
    if construction.can_be_none(value):
        device = device_type(construction, code)
        dist = distributed(construction, code)
        code.imports.append(Import(DEVICE_MESH, "init_device_mesh"))
        all_ranks = f"{mesh} = init_device_mesh({device}, ({dist}.get_world_size(),))"
        code.above += [f"if {mesh} is None:", f"    {all_ranks}"]
    if code.whole is True:
        code.above.append(replicated)
    else:
        code.above += [f"if {code.whole}:", f"    {replicated}"]
    code.imports.append(Import(DEVICE_MESH, "DeviceMesh"))
    code.shared["mesh"] = mesh
    return f"Passed on as `mesh`.{needs_names}"
