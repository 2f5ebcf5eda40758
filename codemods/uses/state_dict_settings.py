"""What a call of `state_dict_type` asks for, in options of `torch.distributed.checkpoint.state_dict`, and what a run as a whole
says of its state dicts: which rank is the first, whose names they have, whether a type is set.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor import Construction, constructions
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.dictionaries import given_keys
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.models import Models, is_module
from fsdp_migrate.facts.names import fsdp1_name
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.facts.values import Value, last_value

MODULE = "torch.distributed.checkpoint.state_dict"
KINDS = {"FULL_STATE_DICT": "Full", "SHARDED_STATE_DICT": "Sharded", "LOCAL_STATE_DICT": "Local"}

# Whole state dicts are gathered for every rank on its device, or for rank 0 on the CPU. No option says anything between.
_WHOLE = {
    (False, False): "StateDictOptions(full_state_dict=True)",
    (True, True): "StateDictOptions(full_state_dict=True, cpu_offload=True)",
}
_SHARDS = {(False, False): "", (True, False): "StateDictOptions(cpu_offload=True)"}
ON_RANK_0 = _WHOLE[True, True]


class Unknown(Exception):
    """A type or configuration that only a run knows; the message says which."""


@dataclass(frozen=True)
class Settings:
    """A type, and where its state dicts go.

    Attributes:
        kind: Full, Sharded or Local.
        model: `offload_to_cpu` and `rank0_only` for the model.
        loads_on_rank_0: `rank0_only` for optimizers.
    """

    kind: str
    model: tuple[bool, bool]
    loads_on_rank_0: bool

    @property
    def options(self) -> str | None:
        """The options of `get_model_state_dict`, empty for its defaults; None if none say the same."""
        return (_WHOLE if self.kind == "Full" else _SHARDS).get(self.model)


def settings(context: Context, call: ast.Call) -> Settings:
    """What a call of `state_dict_type` or `set_state_dict_type` asks for.

    Raises:
        Unknown: if that is known only when the program runs.
    """
    kind = kind_of(context, call)
    if kind is None:
        raise Unknown("its type is known only when the program runs")
    if any(k.arg is None for k in call.keywords) or _is_changed(context):
        raise Unknown("its configuration is known only when the program runs")
    # A model's state dict stays where it is by default; an optimizer's goes to the CPU (torch/distributed/fsdp/api.py).
    model = _flags(context, call, ("state_dict_config", 2), f"{kind}StateDictConfig", False)
    place = ("optim_state_dict_config", 3)
    _, on_rank_0 = _flags(context, call, place, f"{kind}OptimStateDictConfig", kind != "Local")
    return Settings(kind, model, on_rank_0)


def kind_of(context: Context, call: ast.Call) -> str | None:
    """The type that a call gives: Full, Sharded or Local; None if it is not known."""
    given = keyword(call, "state_dict_type", 1)
    file = context.file
    if isinstance(given, ast.Name):
        made = _value(context, given, call)
        given, file = (None, file) if made is None else (made.node, made.file)
    if not isinstance(given, ast.Attribute):
        return None
    owners = context.program.meanings(given.value, file)
    names = {isinstance(o, External) and fsdp1_name(o.dotted) for o in owners}
    return KINDS.get(given.attr) if names == {"StateDictType"} else None


def _is_changed(context: Context) -> bool:
    """Whether the file gives a flag of some configuration another value later."""
    flags = ("offload_to_cpu", "rank0_only")
    return any(
        not isinstance(attribute.ctx, ast.Load)
        for flag in flags
        for attribute in context.file.attributes.get(flag, ())
    )


def _flags(
    context: Context, call: ast.Call, place: tuple[str, int], name: str, offload: bool
) -> tuple[bool, bool]:
    """`offload_to_cpu` and `rank0_only` of one configuration of a call."""
    given = keyword(call, *place)
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return offload, False
    made = _value(context, given, call)
    config = None if made is None else made.node
    if (
        not isinstance(config, ast.Call)
        or made is None
        or context.program.fsdp1(config.func, made.file) != name
        or any(k.arg not in {"offload_to_cpu", "rank0_only"} for k in config.keywords)
    ):
        raise Unknown("its configuration is known only when the program runs")
    first = _flag(keyword(config, "offload_to_cpu", 0), offload)
    second = keyword(config, "rank0_only", 1 if name.startswith("Full") else None)
    return first, _flag(second, False)


def _flag(given: ast.expr | None, default: bool) -> bool:
    if given is None:
        return default
    if isinstance(given, ast.Constant) and isinstance(given.value, bool):
        return given.value
    raise Unknown("its configuration is known only when the program runs")


def _value(context: Context, expression: ast.expr, use: ast.AST) -> Value | None:
    """The one expression behind a name; where it is given several, the last one in front of its use."""
    made, last = context.value(expression), last_value(context.file, expression, use)
    return context.value(last) if made is None and last is not None else made


# Strategies with replicas, and strategies that are looked up by a name.
_HYBRID = re.compile(r"HYBRID|ShardingStrategy\s*[\[(]|getattr\(\s*ShardingStrategy")
_ONE_GROUP = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}
_RENAMED = ("register_state_dict_post_hook", "_register_state_dict_hook")
# Methods by which a module writes its state dict, or adds to it what no tensor need be.
_WRITING = ("state_dict", "_save_to_state_dict", "get_extra_state")
_OF_ITS_OWN = re.compile(
    r"_state_dict_(?:post_)?hook|def (?:_save_to_)?state_dict\b|def get_extra_state\b|torch.*\bcompile\b"
)


def first_is_rank_0(program: Program) -> bool:
    """Whether rank 0 of each model's process group is rank 0 of all ranks, by the constructors of the run."""
    contexts = [Context(file, program) for file in program.files]
    every = [each for context in contexts for each in constructions(context)]
    if any(map(_may_have_group, every)) or any(map(_may_have_mesh, contexts)):
        return False
    if every and all(map(_has_one_group, every)):
        return True
    return not any(_HYBRID.search(file.text) for file in program.files)


def _may_have_group(construction: Construction) -> bool:
    """Whether a constructor is given a process group or a mesh, as far as its arguments are known."""
    starred = any(isinstance(value, ast.Starred) for value in construction.call.args)
    groups = (construction.value("process_group"), construction.value("device_mesh"))
    return starred or bool(construction.unseen) or groups != (None, None)


def _may_have_mesh(context: Context) -> bool:
    """Whether plain code, such as of a former run, gives `fully_shard` a mesh, as far as its arguments are known."""
    file = context.file
    functions = (*file.loads.get("fully_shard", ()), *file.attributes.get("fully_shard", ()))
    calls = [file.parents[function] for function in functions]
    for each in (k for call in calls if isinstance(call, ast.Call) for k in call.keywords):
        keys = [each.arg] if each.arg else given_keys(context, each.value)
        if not keys or any(getattr(key, "name", key) == "mesh" for key in keys):
            return True
    return False


def _has_one_group(construction: Construction) -> bool:
    strategy = construction.value("sharding_strategy")
    return strategy is None or construction.member(strategy, "ShardingStrategy") in _ONE_GROUP


def has_other_names(program: Program, file: File) -> bool:
    """Whether modules of the files that can share a model may give their state dicts names that torch's functions do not find,
    or values that those refuse.

    torch.compile around a model or a part of it puts `_orig_mod.` in front of names, which those functions take away.
    """
    reach = reach_of(program)
    paths = {*map(str, (each.path for each in program.files)), *reach.of(file.path)}
    files = (program.load(path) for path in paths if _OF_ITS_OWN.search(reach.text(path)))
    return any(each is not None and _names_otherwise(program, each) for each in files)


def _names_otherwise(program: Program, file: File) -> bool:
    if any(hook in file.attributes for hook in _RENAMED):
        return True
    for method in file.of(ast.FunctionDef):
        cls = file.enclosing_class(method) if method.name in _WRITING else None
        if cls is not None and is_module(program, Definition(file, cls)):
            return True
    for function in (*file.attributes.get("compile", ()), *file.loads.get("compile", ())):
        call = file.parents[function]
        if (
            isinstance(call, ast.Call)
            and "torch.compile" in program.dotted(function, file)
            and not all(_is_function(program, value, file) for value in call.args[:1])
        ):
            return True
    return False


def _is_function(program: Program, value: ast.expr, file: File) -> bool:
    """Whether a value is a function of the program, which has no state dict."""
    definition = program.definition(value, file)
    return definition is not None and not isinstance(definition.node, ast.ClassDef)


def is_set(models: Models) -> bool:
    """Whether a file sets a type for good, or keeps a context to enter it elsewhere."""
    for file in models.program.files:
        calls = [file.parents[a] for a in file.attributes.get("state_dict_type", ())]
        kept = (c for c in calls if not isinstance(file.parents[c], ast.withitem))
        if "set_state_dict_type" in file.attributes or any(isinstance(c, ast.Call) for c in kept):
            return True
    return False
