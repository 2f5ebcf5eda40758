"""Which ranks shard, and when parameters are freed: `sharding_strategy`, `process_group`, `device_mesh`.

FSDP1's five strategies are two decisions: the mesh (all ranks shard, or groups shard and replicate) and whether parameters
are freed after forward. FSDP2 has an argument for each, `mesh` and `reshard_after_forward`.
"""

import ast

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import (
    HYBRID,
    KEEPING,
    Choice,
    Condition,
    is_for_hybrid_shard,
    negated,
)
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.devices import device_type, distributed
from fsdp_migrate.codemods.constructor.meshes import is_of_all_ranks
from fsdp_migrate.codemods.context import keyword
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.names import RUNTIME, TORCH

FULL_SHARD = Rule("FSDP101", "full-shard")
SHARD_GRAD_OP = Rule("FSDP102", "shard-grad-op")
NO_SHARD = Rule("FSDP103", "no-shard")
HYBRID_SHARD = Rule("FSDP104", "hybrid-shard")
DYNAMIC = Rule("FSDP105", "dynamic-strategy")
GROUP = Rule("FSDP106", "process-group")
MESH = Rule("FSDP107", "device-mesh")

_NAMES = '("replicate", "shard")'
_DIMS = f"mesh_dim_names={_NAMES}"
_WHOLE = "For NO_SHARD, a mesh of shape ({}, 1) lets every rank keep whole parameters."
_NAMED = "Its dimensions get names, which `fully_shard` needs to replicate."
NAMELESS = (
    f"Then `fully_shard` raises, because the mesh has no names: add `{_DIMS}` where it is created."
)
_NO_PAIR = "Your mesh or process group has one dimension, and `_HYBRID_SHARD_ZERO2` needs two: do not choose it here."
_DEVICE_MESH = "torch.distributed.device_mesh"

_CHOSEN = "Replaced by `reshard_after_forward`, which is chosen where the strategy was."
_DEFAULT = "This is FSDP2's default: each unit except the root frees its parameters after forward."
_OWN_PAIR = (
    "Removed: your two dimensions of ranks choose it, and each unit except the root frees its parameters after forward "
    "by default."
)
_BY_RUNTIME = (
    HYBRID_SHARD,
    "`fsdp_migrate.runtime` creates a mesh that replicates across nodes and shards within each.",
)
_STRATEGIES = {
    "FULL_SHARD": (FULL_SHARD, _DEFAULT),
    "SHARD_GRAD_OP": (SHARD_GRAD_OP, "Handled as `reshard_after_forward=False` in every unit."),
    "NO_SHARD": (
        NO_SHARD,
        "`fsdp_migrate.runtime` creates a mesh of shape (world_size, 1): every rank is a replica.",
    ),
    "HYBRID_SHARD": _BY_RUNTIME,
    "_HYBRID_SHARD_ZERO2": _BY_RUNTIME,
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a strategy."""
    if construction.is_none(argument.value):
        return FULL_SHARD, _DEFAULT
    member = construction.member(argument.value, "ShardingStrategy") or ""
    dynamic = (DYNAMIC, "Read by `fsdp_migrate.runtime` when the program runs.")
    return _STRATEGIES.get(member, dynamic)


def strategy(construction: Construction, value: ast.expr, code: Code) -> str:
    """`reshard_after_forward=` of the units below the root, and a mesh where not all ranks shard."""
    choice = _choice(construction, value, code)
    chosen = _where_chosen(construction, value, choice, code)
    if chosen:
        return chosen
    keeps = choice.is_among(_keeping(construction, choice))
    hybrid, whole = choice.is_among(HYBRID), choice.is_among(("NO_SHARD",))
    _free_after_forward(construction, keeps, code)
    is_given = any(
        construction.value(name) is not None for name in ("device_mesh", "process_group")
    )
    has_mesh = construction.value("device_mesh") is not None
    if has_mesh:
        code.hybrid = hybrid
    if is_given and not choice.is_shown and _keeping(construction, choice) != KEEPING:
        mesh = _NO_PAIR
    elif is_given and not choice.is_shown:
        mesh = "Your mesh or process group is used: for NO_SHARD or HYBRID_SHARD it needs two dimensions."
    elif has_mesh:
        code.whole = whole
        mesh = "" if whole is False else _WHOLE.format("ranks")
    elif construction.value("process_group") is not None:
        if hybrid is not False and whole is not False:
            raise AtRunTime
        code.whole, code.hybrid = whole, hybrid
        mesh = "" if whole is False else _WHOLE.format("group_size")
    else:
        mesh = _mesh(construction, choice, hybrid, whole, code)
    if choice.enum in " ".join((*code.child.values(), *code.root.values(), *code.above)):
        home = RUNTIME if construction.like_fsdp1 else TORCH
        code.imports.append(Import(home, "ShardingStrategy", construction.call.func))
    member = construction.member(value, "ShardingStrategy")
    if is_given and member == "HYBRID_SHARD":
        return _OWN_PAIR
    return _message(keeps, mesh, is_one=member is not None)


def _where_chosen(construction: Construction, value: ast.expr, choice: Choice, code: Code) -> str:
    """Takes what a strategy becomes where it is chosen, a mesh or `reshard_after_forward`; "" for any other."""
    strategies = code.rewritten.strategies
    if strategies is None:
        return ""
    if value in strategies.meshes:
        code.shared["mesh"] = strategies.meshes[value].name
        return "Replaced by `mesh`, which is made where the strategy was chosen."
    freed = strategies.freed.get(value)
    if freed is None:
        return ""
    _free_after_forward(construction, f"not {freed.name}", code)
    names = ("device_mesh", "process_group")
    if all(construction.value(name) is None for name in names):
        mesh = _mesh(construction, choice, freed.is_hybrid, False, code)
    else:
        code.hybrid = freed.is_hybrid
        mesh = ""
    return f"{_CHOSEN} {mesh}" if mesh else _CHOSEN


def _keeping(construction: Construction, choice: Choice) -> tuple[str, ...]:
    """The strategies that keep parameters gathered after forward: a hybrid one only where there can be a mesh for it."""
    is_pair = construction.value("process_group") is None and not is_for_hybrid_shard(choice)
    return KEEPING if choice.is_shown or is_pair else ("SHARD_GRAD_OP",)


def _message(keeps: Condition, mesh: str, *, is_one: bool) -> str:
    """What the finding says.

    Args:
        keeps: the condition under which parameters are kept gathered after forward.
        is_one: whether the file shows that it is one strategy.
    """
    if keeps is True:
        text = "Replaced by `reshard_after_forward=False`."
    elif keeps is False and is_one:
        text = _DEFAULT
    elif keeps is False:
        text = "Removed: every strategy that is possible here frees parameters after forward, as FSDP2 does by default."
    else:
        text = "Replaced by `reshard_after_forward`, under the same condition."
    return f"{text} {mesh}" if mesh else text


def _choice(construction: Construction, value: ast.expr, code: Code) -> Choice:
    """The strategy, by a name where it is compared and made by a call."""
    context, call = construction.context, construction.call
    enum = _enum(construction)
    source = construction.text(value)
    strategies = code.rewritten.strategies
    is_name = strategies is not None and value in strategies.values
    choice = Choice(construction, value, enum, source, is_name)
    conditions = [choice.is_among(each) for each in (KEEPING, HYBRID, ("NO_SHARD",))]
    is_compared = any(isinstance(each, str) and f"{enum}." in each for each in conditions)
    if is_compared and "(" in source:
        name = context.local("sharding_strategy", call)
        code.above.append(f"{name} = {source}")
        return Choice(construction, value, enum, name)
    return choice


def _enum(construction: Construction) -> str:
    """How the code names torch's enum: by the file's own name for it, but by no path that goes with a constructor."""
    context = construction.context
    for node, name in context.references.items():
        if name == "ShardingStrategy" and construction.is_same(node):
            source = context.source(node)
            if not source.startswith("torch.") and not construction.goes(node):
                return source
    return "ShardingStrategy"


def _free_after_forward(construction: Construction, keeps: Condition, code: Code) -> None:
    """FSDP1 never frees the root after forward, which is the default of `fully_shard`: only the units below it are told."""
    if keeps is False:
        return
    context = construction.context
    is_one_of_several = len(context.models.constructors(context.file)) > 1
    if code.loop:
        arguments = code.child
    elif keeps is True or is_one_of_several:  # it may be a unit of another model
        arguments = code.root
    else:
        return
    frees = "False" if keeps is True else negated(str(keeps))
    if len(frees) > 50:
        name = context.local("reshard_after_forward", construction.call)
        code.above.append(f"{name} = {frees}")
        code.once.append(name)
        frees = name
    arguments["reshard_after_forward"] = frees


def _mesh(
    construction: Construction, choice: Choice, hybrid: Condition, whole: Condition, code: Code
) -> str:
    """A mesh of all ranks, where the strategy is, or can be, another than to shard over all of them."""
    if hybrid is False and whole is False:
        return ""
    context, call = construction.context, construction.call
    device = device_type(construction, code)
    mesh = context.local("mesh", call)
    lines = _mesh_of_all(construction, hybrid, whole, f"{mesh} = init_device_mesh({device}", code)
    code.imports.append(Import(_DEVICE_MESH, "init_device_mesh"))
    condition: Condition = hybrid is True or choice.is_among((*HYBRID, "NO_SHARD"))
    if condition is not True:
        lines = [f"{mesh} = None", f"if {condition}:", *(f"    {line}" for line in lines)]
    code.above += lines
    code.shared["mesh"] = mesh
    texts = []
    if hybrid is not False:
        texts.append("The mesh replicates across nodes and shards within each.")
    if whole is not False:
        texts.append(_WHOLE.format("world_size"))
    return " ".join(texts)


def _mesh_of_all(
    construction: Construction, hybrid: Condition, whole: Condition, made: str, code: Code
) -> list[str]:
    """Statements that make a mesh of all ranks: those of a node shard, or each holds whole parameters."""
    world = f"{distributed(construction, code)}.get_world_size()"
    if hybrid is False:
        return [f"{made}, ({world}, 1), {_DIMS})"]
    code.imports.append(Import("torch", ""))
    if hybrid is True or whole is False:
        name = construction.context.local("per_node", construction.call)
        lines = [f"{name} = torch.cuda.device_count()"]
    else:
        name = construction.context.local("shards", construction.call)
        lines = [f"{name} = torch.cuda.device_count()", f"if {whole}:", f"    {name} = 1"]
    return [*lines, f"{made}, ({world} // {name}, {name}), {_DIMS})"]


def _branches(otherwise: str, branches: list[tuple[Condition, list[str]]]) -> list[str]:
    """Statements under the conditions that choose them."""
    lines: list[str] = []
    for condition, body in branches:
        if condition is True:
            return body
        if condition is not False:
            word = "elif" if lines else "if"
            lines += [f"{word} {condition}:", *(f"    {line}" for line in body)]
    return [otherwise, *lines]


def process_group(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mesh=`, of the group's ranks."""
    context, call = construction.context, construction.call
    if code.hybrid is not False:
        return _pair_of_groups(construction, value, code)
    if isinstance(value, ast.Tuple):
        raise AtRunTime
    can_be_none = construction.can_be_none(value) or _is_parameter(construction, value)
    device = device_type(construction, code)
    group = construction.text(value)
    code.imports.append(Import(_DEVICE_MESH, "DeviceMesh"))
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
    alone, ranks = context.local("alone", call), context.local("ranks", call)
    replicated = [
        f"{alone} = {dist}.new_group([{dist}.get_rank()], use_local_synchronization=True)",
        f"{ranks} = torch.tensor({dist}.get_process_group_ranks({group})).view(-1, 1)",
        f"{mesh} = DeviceMesh.from_group([{group}, {alone}], {device}, mesh={ranks}, {_DIMS})",
    ]
    if code.whole is not False and can_be_none:
        raise AtRunTime
    if can_be_none:
        code.above.append(f"{made} if {group} is not None else None")
    else:
        code.above += _branches(made, [(code.whole, replicated)])
        code.imports.append(Import("torch", ""))
    code.shared["mesh"] = mesh
    return "Replaced by `mesh`, a device mesh over the ranks of this group."


def _pair_of_groups(construction: Construction, value: ast.expr, code: Code) -> str:
    """The mesh of FSDP1's pair of groups, to shard over and to replicate over, which a mesh has the other way round."""
    context, call = construction.context, construction.call
    dist, device = distributed(construction, code), device_type(construction, code)
    group = construction.text(value)
    names = ("shard_group", "replicate_group", "rows", "mesh")
    shard, replicate, rows, mesh = (context.local(name, call) for name in names)
    pair = [
        f"{shard}, {replicate} = {group}",
        f"{rows} = [None] * {dist}.get_world_size()",
        f"{dist}.all_gather_object({rows}, tuple({dist}.get_process_group_ranks({shard})))",
        f"{mesh} = DeviceMesh.from_group([{replicate}, {shard}], {device}, "
        f"mesh=torch.tensor(sorted(set({rows}))), {_DIMS})",
    ]
    if code.hybrid is not True:
        pair = [
            f"if {code.hybrid}:",
            *(f"    {line}" for line in pair),
            "else:",
            f"    {mesh} = DeviceMesh.from_group({group}, {device})",
        ]
    code.above += pair
    code.imports += [Import(_DEVICE_MESH, "DeviceMesh"), Import("torch", "")]
    code.shared["mesh"] = mesh
    return "Replaced by a `mesh` of two dimensions, built from the two groups: replicate and shard."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_parameter(construction: Construction, value: ast.expr) -> bool:
    """Whether a value is a function's parameter that may be left out, or be None."""
    from fsdp_migrate.codemods.constructor.flow import default_of
    from fsdp_migrate.facts.scopes import Parameter

    bindings = construction.context.file.bindings(value)
    parameters = [each for each in bindings if isinstance(each, Parameter)]
    defaults = [default_of(each.function, each.argument.arg) for each in parameters]
    return any(default is not None and _is_none(default) for default in defaults)


def device_mesh(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mesh=`, as the program makes it, but with a dimension to replicate over where NO_SHARD is chosen."""
    source = construction.text(value)
    needs_names = ""
    nameless = None
    if code.hybrid is not False:
        nameless = _without_names(construction, value)
    if nameless is not None:
        if nameless is value and source.endswith(")"):
            source = f"{source.removesuffix(')')}, {_DIMS})"
            needs_names = f" {_NAMED}"
        else:
            needs_names = f" {NAMELESS}"
    if code.whole is False:
        code.shared["mesh"] = source
        return f"Renamed to `mesh`.{needs_names}"
    mesh = construction.context.local("mesh", construction.call)
    if code.whole is True and is_of_all_ranks(construction, value):
        made = f"{mesh} = init_device_mesh({device_type(construction, code)}"
        code.above += _mesh_of_all(construction, False, True, made, code)
        code.imports.append(Import(_DEVICE_MESH, "init_device_mesh"))
        code.shared["mesh"] = mesh
        return "Replaced by a mesh of the same ranks in two dimensions."
    ranks = f"{mesh}.mesh.view(-1, 1)"
    replicated = f"{mesh} = DeviceMesh({mesh}.device_type, {ranks}, {_DIMS})"
    code.above.append(f"{mesh} = {source}")
    if construction.can_be_none(value):
        device, dist = device_type(construction, code), distributed(construction, code)
        code.imports.append(Import(_DEVICE_MESH, "init_device_mesh"))
        all_ranks = f"{mesh} = init_device_mesh({device}, ({dist}.get_world_size(),))"
        code.above += [f"if {mesh} is None:", f"    {all_ranks}"]
    if code.whole is True:
        code.above.append(replicated)
    else:
        code.above += [f"if {code.whole}:", f"    {replicated}"]
    code.imports.append(Import(_DEVICE_MESH, "DeviceMesh"))
    code.shared["mesh"] = mesh
    return f"Passed on as `mesh`.{needs_names}"


def _without_names(construction: Construction, value: ast.expr) -> ast.Call | None:
    """The call that makes a mesh without the names of its dimensions, which `fully_shard` asks for to replicate."""
    program = construction.context.program
    for made in construction.flow(value).outside:
        call = made.node
        if not isinstance(call, ast.Call):
            continue
        is_mesh = f"{_DEVICE_MESH}.init_device_mesh" in program.dotted(call.func, made.file)
        has_stars = any(each.arg is None for each in call.keywords)
        if not is_mesh or has_stars or keyword(call, "mesh_dim_names", 2) is not None:
            continue
        match keyword(call, "mesh_shape", 1):
            case ast.Tuple([_]) | None:
                continue
            case _:
                return call
    return None
