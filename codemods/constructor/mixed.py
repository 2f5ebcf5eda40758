"""Whether some parameters of a program's models are no DTensors, or on the CPU."""

import ast

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.ignored import NAMES, every_construction, ignores, is_shown
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.program import Program


def are_mixed(program: Program) -> bool:
    """Whether parameters may be no DTensors, or on the CPU, by what the constructors of a run are given; where that is not
    shown, by the words in its files."""
    every = program.once(every_construction)
    if any(map(ignores, every)) or any(map(_offloads, every)):
        return True
    if every and all(map(is_shown, every)):
        return False
    # `StateDictOptions(full_state_dict=True, cpu_offload=True)` is about states.
    words = (r"cpu_offload(?!\s*=\s*True)", *NAMES, "CPUOffload", "ignored_param")
    return program.has("|".join(words))


def _offloads(construction: Construction) -> bool:
    """Whether a constructor may leave parameters on the CPU."""
    value = construction.value("cpu_offload")
    if value is None:
        return False
    made = construction.context.value(value)
    return made is None or bool(offloads(construction, made.node))


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
