"""Whether the constructors of a program still make FSDP1's wrappers: decided for each, and asked of all."""

from fsdp_migrate.codemods.constructor.construction import constructions
from fsdp_migrate.codemods.constructor.form import decide
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.program import Program


def keeps_wrappers(context: Context) -> bool:
    """Whether every sharded model of the program keeps FSDP1's interface, and with it names and wrappers."""
    return not context.in_place or in_place(context) == {False}


def in_place(context: Context) -> set[bool]:
    """Whether constructors of the program shard in place: some may, and others not."""
    found: set[bool] = context.program.once(_outcomes, context.form)
    return found


def _outcomes(program: Program, form: str) -> set[bool]:
    if form == "torch":  # what is left there for a person shards in place as well
        return {True}
    contexts = [Context(file, program, form=form) for file in program.files]
    return {decide(c).form is not None for context in contexts for c in constructions(context)}
