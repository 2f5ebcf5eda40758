"""A file as rules see it for some models alone: those whose constructors can have set an argument to true, or to false.

The calls decide. A word in a comment, or another model of the run, says nothing about a model.
"""

import ast
from dataclasses import replace

from fsdp_migrate.codemods.constructor.construction import DIRECT, WRAP, Construction, constructions
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import Models, models_of
from fsdp_migrate.facts.program import Program

_OPEN = frozenset({True, False})
_DEFAULT = frozenset({False})


class SomeModels(Models):
    """The models of a program that other calls make than those that are left out."""

    def __init__(self, program: Program, left_out: frozenset[ast.Call]) -> None:
        super().__init__(program)
        self._left_out = left_out

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call wraps one of these models."""
        return call not in self._left_out and super().is_constructor(call, file)


def where(context: Context, argument: str, is_set: bool) -> Context | None:
    """The file for the models whose constructors can have `argument=is_set`; None if the program makes none of them."""
    models = context.program.once(_models, argument, is_set)
    if models is None or models is context.models:
        if models is None:
            return None
        return context
    view = replace(context)
    view.models = models
    return view


def where_flat(context: Context) -> Context | None:
    """The file for the models whose units had one flat parameter each: those without `use_orig_params=True`."""
    return where(context, "use_orig_params", False)


def where_original(context: Context) -> Context | None:
    """The file for the models that kept their parameters, as libraries wrap them where the program does not itself."""
    if not context.program.once(_calls):
        return context
    return where(context, "use_orig_params", True)


def _calls(program: Program) -> list[tuple[File, ast.Call]]:
    models = models_of(program)
    return [(file, call) for file in program.files for call in models.constructors(file)]


def _models(program: Program, argument: str, is_set: bool) -> Models | None:
    calls = program.once(_calls)
    left_out = frozenset(
        call for file, call in calls if is_set not in _answers(program, file, call, argument)
    )
    if len(left_out) == len(calls):
        return None
    if left_out:
        return SomeModels(program, left_out)
    return models_of(program)


def _answers(program: Program, file: File, call: ast.Call, argument: str) -> frozenset[bool]:
    """What a boolean argument of a constructor can be."""
    own = program.once(_of_file, file).get(call)
    if own is None and last_name(call.func) == "like_fsdp1":
        # An earlier run sharded in place: parameters are the original ones since, whatever FSDP1 was given.
        return frozenset({argument == "use_orig_params"})
    given = None
    if own is not None:
        given = _given(own, argument)
    if given is not None:
        return given
    if own is not None and own.kind == DIRECT:
        return _DEFAULT
    # A `wrap`, a `partial` and a subclass are given their arguments elsewhere.
    found = frozenset[bool]()
    for other in program.files:
        for each in program.once(_of_file, other).values():
            if each.kind not in (DIRECT, WRAP):
                found |= _given(each, argument) or frozenset()
    return found or _DEFAULT


def _of_file(program: Program, file: File) -> dict[ast.Call, Construction]:
    return {each.call: each for each in constructions(Context(file, program))}


def _given(construction: Construction, argument: str) -> frozenset[bool] | None:
    """What a call gives for an argument; None if it leaves it out."""
    values = [each.value for each in construction.arguments if each.name == argument]
    if not values:
        if construction.is_written_out:
            return None
        return _OPEN
    flow = construction.flow(values[0])
    found = set[bool]()
    for end in flow.ends:
        if flow.unknown or not isinstance(end.node, ast.Constant):
            return _OPEN
        found.add(bool(end.node.value))
    return frozenset(found) or _OPEN
