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
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction, constructions
from fsdp_migrate.codemods.constructor.devices import device_type, distributed
from fsdp_migrate.codemods.constructor.meshes import DEVICE_MESH, DIMS
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.facts.scopes import Defined

FULL_SHARD = Rule("FSDP101", "full-shard")
SHARD_GRAD_OP = Rule("FSDP102", "shard-grad-op")
NO_SHARD = Rule("FSDP103", "no-shard")
HYBRID_SHARD = Rule("FSDP104", "hybrid-shard")
DYNAMIC = Rule("FSDP105", "dynamic-strategy")

_WHOLE = "For NO_SHARD, a mesh of shape ({}, 1) lets every rank keep whole parameters."
_ONE_DIMENSION = (
    "Your mesh or process group is used unchanged. With two dimensions HYBRID_SHARD replicates over the first. With one, "
    "or with `None`, HYBRID_SHARD and NO_SHARD now shard over all ranks: the results are the same, memory and "
    "communication change."
)
_BY_KEY = "An unknown name of a strategy raised `KeyError`; now it means FULL_SHARD."
_CHOSEN = (
    "Replaced by `reshard_after_forward`, whose value is now chosen where the strategy was chosen."
)
_ROOT_ALONE = "Removed: the model is one unit, whose parameters remain gathered after forward, as those of FSDP1's root did."
_DEFAULT = "Has no effect: each unit except the root frees its parameters after forward, which is FSDP2's default."
_LEFT_OUT = "Removed: each unit except the root frees its parameters after forward, which is FSDP2's default."
_OWN_PAIR = (
    "Removed: a mesh of two dimensions already means hybrid sharding. Each unit except the root frees its parameters "
    "after forward, which is FSDP2's default."
)
_BY_RUNTIME = (
    HYBRID_SHARD,
    "Still works: `fsdp_migrate.runtime` creates a mesh that replicates across nodes and shards within each node.",
)
_HYBRID_PAIR = "Replaced by a mesh that replicates across nodes and shards within each node."
_REPLICATED = "Replaced by a mesh of shape (ranks, 1), in which every rank keeps whole parameters."
_STRATEGIES = {
    "FULL_SHARD": (FULL_SHARD, _DEFAULT),
    "SHARD_GRAD_OP": (
        SHARD_GRAD_OP,
        (
            "Still works: `fsdp_migrate.runtime` passes `reshard_after_forward=False` to `fully_shard`."
        ),
    ),
    "NO_SHARD": (
        NO_SHARD,
        (
            "Still works: `fsdp_migrate.runtime` creates a mesh of shape (world_size, 1), in which every rank keeps "
            "whole parameters."
        ),
    ),
    "HYBRID_SHARD": _BY_RUNTIME,
    "_HYBRID_SHARD_ZERO2": _BY_RUNTIME,
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a strategy."""
    if construction.is_none(argument.value):
        return FULL_SHARD, _DEFAULT
    member = construction.member(argument.value, "ShardingStrategy") or ""
    dynamic = (DYNAMIC, "Still works: `fsdp_migrate.runtime` reads it when the program runs.")
    return _STRATEGIES.get(member, dynamic)


def strategy(construction: Construction, value: ast.expr, code: Code) -> str:
    """`reshard_after_forward=` of the units below the root, and a mesh where not all ranks shard."""
    choice = _choice(construction, value, code)
    chosen = _where_chosen(construction, value, choice, code)
    if chosen:
        return chosen
    keeps = choice.is_among(_keeping(construction, choice))
    hybrid = choice.is_among(HYBRID)
    whole = choice.is_among(("NO_SHARD",))
    is_told = _free_after_forward(construction, keeps, code)
    if construction.value("device_mesh") is not None:
        code.hybrid = hybrid
    if not construction.has_mesh:
        mesh = _mesh(construction, choice, hybrid, whole, code)
    elif choice.is_shown:
        mesh = _of_given(construction, hybrid, whole, code)
    else:
        mesh = _ONE_DIMENSION
    if choice.enum in " ".join((*code.child.values(), *code.root.values(), *code.above)):
        home = TORCH
        if construction.like_fsdp1:
            home = RUNTIME
        code.imports.append(Import(home, "ShardingStrategy", construction.call.func))
    member = construction.member(value, "ShardingStrategy")
    named = _of_member(member, is_given=construction.has_mesh)
    if named:
        return named
    text = _message(keeps, mesh, is_one=member is not None)
    if not is_told:
        return f"{_ROOT_ALONE} {mesh}".rstrip()
    if isinstance(keeps, str) and (choice.is_name or choice.is_by_key):
        text = f"{text} {_BY_KEY}"
    return text


def _where_chosen(construction: Construction, value: ast.expr, choice: Choice, code: Code) -> str:
    """Takes what a strategy becomes where it is chosen, a mesh or `reshard_after_forward`; "" for any other."""
    strategies = code.rewritten.strategies
    if strategies is None:
        return ""
    if value in strategies.meshes:
        code.shared["mesh"] = strategies.meshes[value].name
        return "Replaced by `mesh`, which is now created where the strategy was chosen."
    freed = strategies.freed.get(value)
    if freed is None:
        return ""
    _free_after_forward(construction, f"not {freed.name}", code)
    if construction.has_mesh:
        code.hybrid = freed.is_hybrid
        return _CHOSEN
    mesh = _mesh(construction, choice, freed.is_hybrid, False, code)
    if mesh:
        return f"{_CHOSEN} {mesh}"
    return _CHOSEN


def _of_given(construction: Construction, hybrid: Condition, whole: Condition, code: Code) -> str:
    """What is said of a strategy with a mesh or a process group of the program's own."""
    code.whole = whole
    size = "ranks"
    if construction.value("device_mesh") is None:
        if hybrid is not False and whole is not False:
            raise AtRunTime
        code.hybrid = hybrid
        size = "group_size"
    if whole is False:
        return ""
    return _WHOLE.format(size)


def _keeping(construction: Construction, choice: Choice) -> tuple[str, ...]:
    """The strategies that keep parameters gathered after forward: a hybrid one only where there can be a mesh for it."""
    is_pair = construction.value("process_group") is None and not is_for_hybrid_shard(choice)
    if choice.is_shown or is_pair:
        return KEEPING
    return ("SHARD_GRAD_OP",)


def _of_member(member: str | None, *, is_given: bool) -> str:
    """What the finding says of one strategy that is written out and becomes a mesh."""
    match member:
        case "NO_SHARD":
            return _REPLICATED
        case "HYBRID_SHARD" if is_given:
            return _OWN_PAIR
        case "HYBRID_SHARD":
            return _HYBRID_PAIR
    return ""


def _message(keeps: Condition, mesh: str, *, is_one: bool) -> str:
    """What the finding says.

    Args:
        keeps: the condition under which parameters are kept gathered after forward.
        is_one: whether the file shows that it is one strategy.
    """
    if keeps is True:
        text = (
            "Replaced by `reshard_after_forward=False`, which keeps parameters gathered after forward, as SHARD_GRAD_OP "
            "does."
        )
    elif keeps is False and is_one:
        text = _LEFT_OUT
    elif keeps is False:
        text = "Removed: every strategy that is possible here frees parameters after forward, as FSDP2 does by default."
    else:
        text = (
            "Replaced by `reshard_after_forward`, computed from the same condition: true for strategies that free "
            "parameters after forward, as FULL_SHARD does."
        )
    if mesh:
        return f"{text} {mesh}"
    return text


def _choice(construction: Construction, value: ast.expr, code: Code) -> Choice:
    """The strategy, by a name where it is compared and made by a call."""
    context = construction.context
    call = construction.call
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
            if not source.startswith("torch.") and not _goes(context, node):
                return source
    return "ShardingStrategy"


def _goes(context: Context, node: ast.expr) -> bool:
    """Whether a path is in a constructor's call or arguments, which other code takes the place of: its import may go, too."""
    if not isinstance(node, ast.Attribute):
        return False
    gone: set[ast.AST] = {*context.models.constructors(context.file)}
    for construction in constructions(context):  # a dictionary has its arguments elsewhere
        gone.update([argument.node for argument in construction.arguments])
    return not gone.isdisjoint(context.file.ancestors(node))


def _free_after_forward(construction: Construction, keeps: Condition, code: Code) -> bool:
    """FSDP1 never frees the root after forward, which is the default of `fully_shard`: only the units below it are told.

    Returns:
        whether a unit is told, or none needs to be.
    """
    if keeps is False:
        return True
    context = construction.context
    is_one_of_several = len(context.models.constructors(context.file)) > 1
    if code.loop:
        arguments = code.child
    elif keeps is True or is_one_of_several or _is_handed_on(construction):
        arguments = code.root  # it may be a unit of another model
    else:
        return False
    frees = "False"
    if keeps is not True:
        frees = negated(str(keeps))
    if len(frees) > 50:
        name = context.local("reshard_after_forward", construction.call)
        code.above.append(f"{name} = {frees}")
        code.once.append(name)
        frees = name
    arguments["reshard_after_forward"] = frees
    return True


def _is_handed_on(construction: Construction) -> bool:
    """Whether other code is given the function of the constructor, as in `apply(model, wrap)`: it may call it for parts."""
    context = construction.context
    file = context.file
    function = file.function(construction.call)
    if function is None:
        return False
    for load in file.loads.get(function.name, ()):
        given: ast.AST = load
        if isinstance(file.parents[load], ast.keyword):
            given = file.parents[load]
        taking = file.parents[given]
        if isinstance(taking, ast.Call) and taking.func is not load:
            is_it = any(isinstance(e, Defined) and e.node is function for e in file.bindings(load))
            if is_it and "functools.partial" not in context.dotted(taking.func):
                return True
    return False


def _mesh(
    construction: Construction, choice: Choice, hybrid: Condition, whole: Condition, code: Code
) -> str:
    """A mesh of all ranks, where the strategy is, or can be, another than to shard over all of them."""
    if hybrid is False and whole is False:
        return ""
    context = construction.context
    call = construction.call
    device = device_type(construction, code)
    mesh = context.local("mesh", call)
    lines = mesh_of_all(construction, hybrid, whole, f"{mesh} = init_device_mesh({device}", code)
    code.imports.append(Import(DEVICE_MESH, "init_device_mesh"))
    condition: Condition = hybrid is True or choice.is_among((*HYBRID, "NO_SHARD"))
    if condition is not True:
        lines = [f"{mesh} = None", f"if {condition}:", *[f"    {line}" for line in lines]]
    code.above += lines
    code.shared["mesh"] = mesh
    texts = []
    if hybrid is not False:
        texts.append(
            "For HYBRID_SHARD, a mesh replicates across nodes and shards within each node."
        )
    if whole is not False:
        texts.append(_WHOLE.format("world_size"))
    return " ".join(texts)


def mesh_of_all(
    construction: Construction, hybrid: Condition, whole: Condition, made: str, code: Code
) -> list[str]:
    """Statements that make a mesh of all ranks: those of a node shard, or each holds whole parameters."""
    world = f"{distributed(construction, code)}.get_world_size()"
    if hybrid is False:
        return [f"{made}, ({world}, 1), {DIMS})"]
    code.imports.append(Import("torch", ""))
    counted = "torch.cuda.device_count()"
    if "torch.accelerator." in made:
        counted = "torch.accelerator.device_count()"
    if hybrid is True or whole is False:
        name = construction.context.local("per_node", construction.call)
        lines = [f"{name} = {counted}"]
    else:
        name = construction.context.local("shards", construction.call)
        lines = [f"{name} = {counted}", f"if {whole}:", f"    {name} = 1"]
    return [*lines, f"{made}, ({world} // {name}, {name}), {DIMS})"]


def branches(otherwise: str, branches: list[tuple[Condition, list[str]]]) -> list[str]:
    """Statements under the conditions that choose them."""
    lines: list[str] = []
    for condition, body in branches:
        if condition is True:
            return body
        if condition is not False:
            word = "if"
            if lines:
                word = "elif"
            lines += [f"{word} {condition}:", *[f"    {line}" for line in body]]
    return [otherwise, *lines]
