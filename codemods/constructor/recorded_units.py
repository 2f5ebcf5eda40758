"""The units that a run made of a model, and how they get memory where the model was on the meta device."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.plain import Plain, Stays, has_torch
from fsdp_migrate.codemods.constructor.recorded_checks import written
from fsdp_migrate.codemods.constructor.translate import translated
from fsdp_migrate.codemods.constructor.wrapping import named_classes
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.facts.scopes import Imported

if TYPE_CHECKING:
    from fsdp_migrate.values import Recorded

_MOST_NAMES = 12


def units(construction: Construction, recorded: Recorded) -> Plain:
    """The units by class where they were all modules of classes that have a name here, else by their own names.

    Raises:
        Stays: if a unit had options of its own, or there are too many to be named.
    """
    facts = recorded.facts
    if recorded.arguments.get("auto_wrap_policy", "None") == "None":
        return Plain()
    precise = recorded.arguments.get("mixed_precision", "None") != "None"
    norms = set(facts["batch_norm"]) if precise else set()
    if others := sorted(norms ^ set(facts["other_options"])):
        raise Stays(f"auto_wrap_policy gave {others[0]} options of its own")
    made = {cls: names for cls, names in facts["units"].items() if not norms.issuperset(names)}
    if not made:
        return Plain(norms=bool(norms))
    known = [_class(construction, dotted) for dotted in made]
    if facts["all_of_classes"] and (own := named_classes(construction)):
        texts = [construction.context.source(cls) for cls in own]
        return replace(translated("auto_wrap_policy", texts), norms=bool(norms))
    if facts["all_of_classes"] and all(text for text, _ in known):
        part = translated("auto_wrap_policy", [text for text, _ in known])
        needs = tuple(need for _, need in known if need is not None)
        return replace(part, imports=needs, norms=bool(norms))
    names = [name for group in made.values() for name in group]
    if len(names) > _MOST_NAMES:
        raise Stays("the file cannot name the classes of auto_wrap_policy's units")
    # Children before parents.
    return Plain(members=tuple(sorted(names, key=lambda name: -name.count("."))), norms=bool(norms))


def _class(construction: Construction, dotted: str) -> tuple[str, Import | None]:
    """How a class is written at the constructor, and its import if it has no name there; "" if it can have none."""
    owner, _, name = dotted.rpartition(".")
    context, call = construction.context, construction.call
    if owner == "torch.nn":
        if context.means("nn", call, "torch.nn") and context.file.scope_of(call).lookup("nn"):
            return f"nn.{name}", None
        return (dotted, None) if has_torch(context, call) else ("", None)
    found = context.file.scope_of(call).lookup(name)
    if found is None:
        is_script = not owner or context.file.name == owner
        return ("", None) if is_script else (name, Import(owner, name))
    is_it = all(
        isinstance(b, Imported) and f"{b.module}.{b.member}" == dotted for b in found.bindings
    )
    return (name, None) if is_it else ("", None)


def check_outputs(construction: Construction, made: Callable[[], list[str]]) -> None:
    """Checks that FSDP2 finds the tensors that units return, as FSDP1 did: else they would get no gradients, silently.

    It looks into dataclasses and into other classes of the program's own from torch 2.13 on (`_fsdp_state.py`).

    Args:
        made: the dataclasses that the files show, where no run has seen what units return.

    Raises:
        Stays: if it may not find them.
    """
    if construction.context.target >= (2, 13):
        return
    run = construction.context.recorded(construction.call)
    seen = {} if run is None else run.facts | run.differs
    hidden = seen["hidden_outputs"] if "hidden_outputs" in seen else made()
    if hidden:
        raise Stays(
            f"a forward returns {hidden[0]}, into which FSDP2 looks from torch 2.13 on "
            "(--target-torch)"
        )


def ignored(construction: Construction, recorded: Recorded, source: str) -> Plain:
    """The parameters that no unit takes, where the modules that were ignored had nothing else for a unit.

    Raises:
        Stays: if they had.
    """
    facts, sent = recorded.facts, recorded.arguments.get("sync_module_states") == "True"
    if facts.get("ignored_are_used", True) or sent or was_on_meta(facts):
        raise Stays("ignored_modules: the runtime leaves their buffers and gradients alone")
    name = construction.context.free("ignored_params", construction.call)
    line = f"{name} = {{p for module in {source} for p in module.parameters()}}"
    return Plain("becomes their parameters", {"ignored_params": name}, above=(line,))


def was_on_meta(facts: Mapping[str, Any] | None) -> bool:
    """Whether a run has seen a model on the meta device, on some ranks or in some calls at least."""
    return facts is not None and bool(facts.get("meta", True))


def initialization(
    construction: Construction,
    recorded: Recorded,
    given: ast.expr | None,
    named: Callable[[str], str],
    device: str,
) -> Plain:
    """How each unit gets memory and values just before it is sharded; nothing for a model that has them.

    FSDP1 goes from one unit to the next, children before parents (`_wrap_utils.py`, `_auto_wrap`), which is the order of
    `model.modules()` as long as no unit is inside another.

    Args:
        given: `param_init_fn`, if it is given.
        named: names in source what is unpacked into the call.
        device: the keyword argument for the device, as source.

    Raises:
        Stays: if units were nested, or have another order.
    """
    if given is None and not was_on_meta(recorded.facts):
        return Plain()
    groups, norms = recorded.facts["units"], recorded.facts["batch_norm"]
    names = [name for group in groups.values() for name in group]
    if any(
        inner.startswith(f"{outer.removesuffix('.*')}.") for outer, inner in permutations(names, 2)
    ):
        raise Stays("a unit was inside another, and FSDP1 initialized the inner one first")
    is_by_name = len(groups) > 1 and not recorded.facts["all_of_classes"]
    if is_by_name or (norms and recorded.arguments.get("mixed_precision", "None") != "None"):
        raise Stays(
            "units of several classes were initialized in an order that a loop over modules would not keep"
        )
    above: tuple[str, ...] = ()
    if given is None:
        arguments = device
    else:
        context = construction.context
        if any(node in context.references for node in ast.walk(given)):
            raise Stays("param_init_fn uses a name of FSDP1")
        code = named(written(given))
        if not isinstance(given, ast.Name | ast.Attribute):
            name = context.free("param_init_fn", construction.call)
            above, code = (_bound(given, name, code),), name
        if context.program.definition(given, context.file) or isinstance(given, ast.Lambda):
            device = ""  # it knows its own
        arguments = f", {code}{device}"
    return Plain(
        "runs on each unit just before it is sharded, as under FSDP1",
        above=above,
        each=(f"materialize({{module}}{arguments})",),
        imports=(Import(RUNTIME, "materialize", construction.call.func),),
        kept=() if given is None else (given,),
    )


def _bound(function: ast.expr, name: str, code: str) -> str:
    """A function that is written inside of a call, with a name."""
    if isinstance(function, ast.Lambda):
        return f"def {name}({ast.unparse(function.args)}):\n    return {written(function.body)}"
    return f"{name} = {code}"
