"""What a run as a whole says of its state dicts: which rank is the first, whose names they have, whether a type is set."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from fsdp_migrate.codemods.constructor.construction import Construction, Constructions
from fsdp_migrate.codemods.constructor.options import given_keys
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models import Models

# Strategies with replicas, and strategies that are looked up by a name.
_HYBRID = re.compile(r"HYBRID|ShardingStrategy\s*[\[(]|getattr\(\s*ShardingStrategy")
_ONE_GROUP = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}
_RENAMED = ("register_state_dict_post_hook", "_register_state_dict_hook")


@lru_cache(maxsize=1)
def first_is_rank_0(models: Models) -> bool:
    """Whether rank 0 of each model's process group is rank 0 of all ranks, by the constructors of the run."""
    program = models.program
    contexts = [Context(file, program) for file in program.files]
    every = [each for context in contexts for each in Constructions(context).all]
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
    for keyword in (k for call in calls if isinstance(call, ast.Call) for k in call.keywords):
        keys = [keyword.arg] if keyword.arg else given_keys(context, keyword.value)
        if not keys or any(getattr(key, "name", key) == "mesh" for key in keys):
            return True
    return False


def _has_one_group(construction: Construction) -> bool:
    strategy = construction.value("sharding_strategy")
    return strategy is None or construction.member(strategy, "ShardingStrategy") in _ONE_GROUP


@lru_cache(maxsize=1)
def has_other_names(models: Models) -> bool:
    """Whether modules of the program may give their state dicts names that torch's functions do not find.

    torch.compile around a model puts `_orig_mod.` in front of them, which those functions take away.
    """
    for file in models.program.files:
        if any(hook in file.attributes for hook in _RENAMED):
            return True
        for function in (*file.attributes.get("compile", ()), *file.loads.get("compile", ())):
            call = file.parents[function]
            if (
                isinstance(call, ast.Call)
                and "torch.compile" in models.program.dotted(function, file)
                and any(models.can_hold(value, file) for value in call.args)
            ):
                return True
    return False


def is_set(models: Models) -> bool:
    """Whether a file sets a type for good, or keeps a context to enter it elsewhere."""
    for file in models.program.files:
        calls = [file.parents[a] for a in file.attributes.get("state_dict_type", ())]
        kept = (c for c in calls if not isinstance(file.parents[c], ast.withitem))
        if "set_state_dict_type" in file.attributes or any(isinstance(c, ast.Call) for c in kept):
            return True
    return False
