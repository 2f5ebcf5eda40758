"""Whether some parameters of a program's models are no DTensors, or on the CPU."""

import ast

from fsdp_migrate.codemods.constructor.construction import SUBCLASS, Construction, constructions
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.program import Program

# What leaves some parameters whole, or on the CPU.
_MIXING = ("cpu_offload", "ignored_modules", "ignored_states")


def are_mixed(program: Program) -> bool:
    """Whether parameters may be no DTensors, or on the CPU, by what the constructors of a run are given; where that is not
    shown, by the words in its files."""
    every = [each for file in program.files for each in constructions(Context(file, program))]
    if any(map(_mixes, every)):
        return True
    if every and all(map(_is_shown, every)):
        return False
    # `StateDictOptions(full_state_dict=True, cpu_offload=True)` is about states.
    words = (r"cpu_offload(?!\s*=\s*True)", *_MIXING[1:], "CPUOffload", "ignored_param")
    return program.has("|".join(words))


def _mixes(construction: Construction) -> bool:
    """Whether an argument may leave some parameters whole, or on the CPU."""
    for name in _MIXING:
        value = construction.value(name)
        if value is None:
            continue
        made = None
        if name == "cpu_offload":
            made = construction.context.value(value)
        if made is None or offloads(construction, made.node):
            return True
    return False


def _is_shown(construction: Construction) -> bool:
    """Whether the file shows all arguments of a constructor."""
    has_stars = any(isinstance(each, ast.Starred) for each in construction.call.args)
    return not construction.unseen and not has_stars and construction.kind != SUBCLASS


def offloads(construction: Construction, made: ast.expr) -> object:
    """The flag of `CPUOffload(True)`, None for None; `...` for any other expression or flag."""
    if isinstance(made, ast.Constant):
        return made.value
    if not isinstance(made, ast.Call) or construction.context.fsdp1(made.func) != "CPUOffload":
        return ...
    given = values_given(made)
    if given:
        return construction.constant(given[0])
    return False
