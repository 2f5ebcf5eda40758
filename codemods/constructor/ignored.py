"""Whether the constructors of a program leave some parameters out of the sharding: `ignored_modules`, `ignored_states`."""

import ast

from fsdp_migrate.codemods.constructor.construction import SUBCLASS, Construction, constructions
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.nodes import has_star
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Program

NAMES = ("ignored_modules", "ignored_states")
_SHARDS = "fully_shard("
# Where the constructors do not show it.
_WORDS = r"ignored_(?<!\wignored_)(?:modules|states|param)\w*[\"']?\s*[:=](?!\s*None)"


def may_ignore(program: Program) -> bool:
    """Whether parameters may be ignored, by what constructors are given; where they do not show it, by words in the files."""
    every = program.once(every_construction)
    if any(map(ignores, every)):
        return True
    # What a run before has rewritten is no constructor any more.
    is_rewritten = any(_SHARDS in file.text for file in program.files)
    if every and all(map(is_shown, every)) and not is_rewritten:
        return False
    return program.has(_WORDS)


def every_construction(program: Program) -> list[Construction]:
    """All calls of a program that shard a model by FSDP1."""
    return [each for file in program.files for each in constructions(Context(file, program))]


def ignores(construction: Construction) -> bool:
    """Whether a constructor is given something to ignore, or may be."""
    for name in NAMES:
        value = construction.value(name)
        if value is None:
            continue
        flow = construction.flow(value)
        if flow.unknown or not all(map(_is_none, flow.ends)):
            return True
    return False


def is_shown(construction: Construction) -> bool:
    """Whether the file shows all arguments of a constructor."""
    has_stars = has_star(construction.call)
    return not construction.unseen and not has_stars and construction.kind != SUBCLASS


def _is_none(end: Value) -> bool:
    """Whether a value is None, or an empty default: a list that has a name may be filled."""
    match end.node:
        case ast.Constant(None):
            return True
        case ast.List([]) | ast.Tuple([]) | ast.Dict([]):
            return isinstance(end.file.parents[end.node], ast.arguments)
        case ast.Call(ast.Name("set"), [], []):
            return isinstance(end.file.parents[end.node], ast.arguments)
    return False
