"""A row for each argument of FSDP1's constructor: its rule, what the runtime does with it, and its code in torch's words."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.assumptions.table import SETTING
from fsdp_migrate.codemods.constructor import (
    buffers,
    devices,
    from_rank_0,
    given_meshes,
    offloading,
    precision,
    sharding,
    wrapping,
)
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    DIRECT,
    PARTIAL,
    UNITS,
    AtRunTime,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.meta import is_on_meta
from fsdp_migrate.codemods.constructor.options import Rewritten
from fsdp_migrate.codemods.constructor.predicates import Predicates
from fsdp_migrate.codemods.constructor.remarks import Beside
from fsdp_migrate.codemods.constructor.silent import hits
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.edit.text import Refused
from fsdp_migrate.codemods.imports import BINDING, may_change
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.nodes import any_is, is_none
from fsdp_migrate.facts.program import Program

BACKWARD_PREFETCH = Rule("FSDP203", "backward-prefetch")
FORWARD_PREFETCH = Rule("FSDP204", "forward-prefetch")
LIMIT = Rule("FSDP205", "limit-all-gathers")
USE_ORIG_PARAMS = Rule("FSDP206", "use-orig-params")
IGNORED = Rule("FSDP212", "ignored-modules")


@dataclass(frozen=True)
class Row:
    """What one argument means under FSDP2.

    Attributes:
        write: adds a value other than None to the code in torch's words and says what becomes of it, "" where `say` does;
            raises AtRunTime where torch has no words for it.
        rule: its rule; or a function that gives this and the text, by the value.
        text: what the runtime does with the value, and `off` where that is None or False, if it is something else.
        removed: what becomes of it in torch's words, where `write` does not say.
    """

    write: Callable[[Construction, ast.expr, Code], str]
    rule: Rule | Callable[[Construction, Argument], tuple[Rule, str]]
    text: str = ""
    off: str = ""
    removed: str = ""

    def say(self, construction: Construction, argument: Argument) -> tuple[Rule, str]:
        """Its rule, and what the runtime does with the value given."""
        if not isinstance(self.rule, Rule):
            return self.rule(construction, argument)
        constant = construction.constant(argument.value)
        is_off = constant is None or constant is False  # 0 is a device
        if is_off and self.off:
            return self.rule, self.off
        return self.rule, self.text


def in_torchs_words(construction: Construction, model: str) -> Code:
    """What the arguments of a call become in torch's words, each by itself.

    Raises:
        AtRunTime: if one of them has none.
    """
    context = construction.context
    options = context.program.once(rewritten, context.form)
    return _all_written(construction, Code(model, options))


def _all_written(construction: Construction, code: Code) -> Code:
    """The code with what every argument becomes, and what a model without values needs."""
    _written(construction, code, tuple(ROWS))
    if is_on_meta(construction) and construction.value("param_init_fn") is None:
        if construction.like_fsdp1:
            raise AtRunTime("the file creates models on the meta device")
        devices.empty(construction, code)
    if code.cast or code.device:
        buffers.write(construction, code)
    _leave_behind(construction, code)
    return code


def _written(construction: Construction, code: Code, names: tuple[str, ...]) -> Code:
    """The code with what some arguments become, in the order of the rows."""
    if not construction.is_written_out:
        raise AtRunTime(
            "the call unpacks arguments (`**kwargs`) whose values this file does not show"
        )
    given = {argument.name: argument for argument in construction.arguments}
    for name in names:
        argument = given.get(name)
        if argument is None:
            continue
        # None switches prefetching off.
        is_default = construction.is_none(argument.value) and name != "backward_prefetch"
        try:
            row = ROWS[name]
            beside = Beside(construction, argument, code)
            said = ""
            if not is_default:
                said = row.write(construction, argument.value, code)
            beside.put()
            code.said[name] = said or row.removed or row.say(construction, argument)[1]
        except AtRunTime:
            raise AtRunTime(f"the value of `{name}` is computed at run time") from None
    return code


def rewritten(program: Program, form: str) -> Rewritten:
    """The option objects that a run rewrites where they are made: only those of constructors that can take FSDP2's."""
    taking = [*_speaking(program, form)]
    chosen = [each for each in taking if each.value("auto_wrap_policy") is not None]
    asked = [each for each in chosen if wrapping.is_asked(each)]
    while True:
        options = Rewritten(program, taking)
        able = [construction for construction in taking if _can_take(construction, options)]
        if len(able) == len(taking):
            if asked:
                options.predicates = Predicates(program, taking, asked)
            return options
        taking = able


def _can_take(construction: Construction, options: Rewritten) -> bool:
    """Whether a constructor has torch's words once some option objects are FSDP2's."""
    try:
        _all_written(construction, Code("model", options))
    except (AtRunTime, Refused):
        return False
    return True


def _speaking(program: Program, form: str) -> Iterator[Construction]:
    """The constructors of a run of which every argument but `mixed_precision` has torch's words."""
    others = tuple(name for name in ROWS if name != "mixed_precision")
    for file in program.files:
        context = Context(file, program, form=form)
        for construction in constructions(context):
            try:
                leaves = construction.kind in (DIRECT, PARTIAL, UNITS) and not construction.unknown
                leaves = leaves and not context.silenced(CONSTRUCTOR, construction.call)
                if leaves and (form == "torch" or not hits(construction)):
                    _written(construction, Code("model", Rewritten(program, [])), others)
                    yield construction
            except AtRunTime:
                continue


def _leave_behind(construction: Construction, code: Code) -> None:
    """Lets `like_fsdp1` leave behind what FSDP1's flat parameters lacked; `units` reads `use_orig_params` itself."""
    context = construction.context
    kept = construction.keeps_attributes
    if not construction.like_fsdp1 or kept == "True":
        return
    paths = context.program.reach.of(context.file.path)
    said = []
    if not context.program.tree.having(SETTING.encode()).isdisjoint(paths):
        code.like_fsdp1.append(f"parameter_attributes={kept}")
        lasting = "are lost, as they were under FSDP1"
        if kept != "False":
            lasting = "are kept where FSDP1 kept them, with `use_orig_params=True`"
        said.append(f"Attributes that code sets on parameters (`p.no_decay = True`) {lasting}.")
    if construction.has_older_optimizer:
        code.like_fsdp1.append(f"older_optimizers={kept}")
        said.append(
            "An optimizer created before sharding trains the model only if it did under FSDP1."
        )
    if "use_orig_params" in code.said:
        code.said["use_orig_params"] = " ".join((code.said["use_orig_params"], *said))


def _no_effect(construction: Construction, value: ast.expr, code: Code) -> str:
    """An argument that means nothing under FSDP2, whatever its value."""
    if any_is(ast.walk(value), BINDING):
        raise AtRunTime
    if may_change(value):
        code.above.append(construction.text(value))
    return ""


_NO_PREFETCH = "Has no effect: forward prefetching is off by default."


def _forward_prefetch(construction: Construction, value: ast.expr, code: Code) -> str:
    """The next unit's parameters are gathered with a unit's own, which changes no number."""
    constant: object = ...
    if value in construction.context.file.parents:
        constant = construction.constant(value)
    if constant is False:
        return _NO_PREFETCH
    if not code.loop:
        return "Has no effect: with a single unit there is nothing to prefetch."
    context = construction.context
    call = construction.call
    units = context.local("fsdp_modules", call)  # `units` may be imported from the runtime
    code.use(construction, "FSDPModule")
    lines = [
        f"{units} = [m for m in {code.model}.modules() if isinstance(m, FSDPModule)]",
        f"for unit, following in zip({units}[1:], {units}[2:]):",
        "    unit.set_modules_to_forward_prefetch([following])",
    ]
    if constant is ...:
        lines = [f"if {construction.text(value)}:", *[f"    {line}" for line in lines]]
    code.last += lines
    return (
        "Replaced by `set_modules_to_forward_prefetch`: each unit prefetches the next one in the order of "
        "`model.modules()`."
    )


def _ignored(construction: Construction, value: ast.expr, code: Code) -> str:
    """`ignored_params=`, and no unit inside of what is ignored."""
    context = construction.context
    call = construction.call
    source = construction.text(value)
    flow = construction.flow(value)
    may_be_none = any(map(is_none, [end.node for end in flow.ends]))
    may_be_none |= flow.unknown and isinstance(value, ast.Name | ast.Attribute)
    if may_be_none:
        source = f"({source} or ())"
    parameters = context.local("ignored_params", call)
    # Parameters, or modules: what FSDP1 took as ignored_states is either.
    is_modules = any(
        each.name == "ignored_modules" and each.value is value for each in construction.arguments
    )
    if not is_modules:
        kind = _kind_of_ignored(construction, value)
        if kind is None:
            raise AtRunTime
        is_modules = kind == "modules"
    if not is_modules:
        code.above.append(f"{parameters} = set({source})")
    else:
        code.above.append(f"{parameters} = {{p for m in {source} for p in m.parameters()}}")
        if construction.value("auto_wrap_policy") is not None:
            code.ignored = context.local("ignored", call)
            code.above.append(
                f"{code.ignored} = {{part for m in {source} for part in m.modules()}}"
            )
    code.shared["ignored_params"] = parameters
    return "Replaced by `ignored_params`, a set of the same parameters."


def _kind_of_ignored(construction: Construction, value: ast.expr) -> str | None:
    """Whether `ignored_states` are modules or parameters, by the words that make them."""
    texts = [ast.unparse(value)]
    made = None
    if value in construction.context.file.parents:
        made = construction.context.value(value)
    if made is not None:
        texts.append(ast.unparse(made.node))
    text = " ".join(texts)
    if "param" in text:
        return "parameters"
    if "module" in text:
        return "modules"
    return None


_IGNORED = Row(
    _ignored,
    IGNORED,
    "Still works: `fsdp_migrate.runtime` leaves these parameters unsharded.",
    "Has no effect: no module is ignored, which is the default.",
)
# In the order in which they are written.
ROWS = {
    "ignored_modules": _IGNORED,
    "ignored_states": _IGNORED,
    "auto_wrap_policy": Row(wrapping.policy, wrapping.say),
    "sharding_strategy": Row(sharding.strategy, sharding.say),
    "process_group": Row(
        given_meshes.process_group,
        given_meshes.GROUP,
        "Still works: `fsdp_migrate.runtime` creates a device mesh from this process group.",
        "Has no effect: all ranks are used, which is the default.",
    ),
    "device_mesh": Row(
        given_meshes.device_mesh,
        given_meshes.MESH,
        "Still works: `fsdp_migrate.runtime` passes this mesh to `fully_shard`.",
        "Has no effect: all ranks are used, which is the default.",
    ),
    "mixed_precision": Row(precision.precision, precision.say),
    "cpu_offload": Row(offloading.cpu_offload, offloading.say),
    "device_id": Row(
        devices.device_id,
        devices.DEVICE_ID,
        "Still works: `fsdp_migrate.runtime` makes this the current device and moves the model to it.",
        "Has no effect: no device is set, which is the default.",
    ),
    "param_init_fn": Row(
        devices.initialize,
        devices.INIT_FUNCTION,
        "Still works: `fsdp_migrate.runtime` initializes each unit before sharding it, as FSDP1 did.",
        "Removed: `None` is the default, and there is no function to call.",
    ),
    "sync_module_states": Row(
        from_rank_0.sync,
        from_rank_0.SYNC,
        "Still works: `fsdp_migrate.runtime` broadcasts parameters and buffers from rank 0 before sharding.",
        "Has no effect: nothing is broadcast, which is the default.",
    ),
    "forward_prefetch": Row(
        _forward_prefetch,
        FORWARD_PREFETCH,
        "Still works: `fsdp_migrate.runtime` records the order in which units run and prefetches in that order.",
        _NO_PREFETCH,
    ),
    "backward_prefetch": Row(
        _no_effect,
        BACKWARD_PREFETCH,
        "Has no effect: FSDP2 always prefetches the next unit during backward, as `BACKWARD_PRE` did.",
        removed="Removed: FSDP2 always prefetches the next unit during backward, as `BACKWARD_PRE` did.",
    ),
    "limit_all_gathers": Row(
        _no_effect,
        LIMIT,
        "Has no effect: FSDP2 limits its memory without it.",
        removed="Removed: FSDP2 limits its memory without it.",
    ),
    "use_orig_params": Row(
        _no_effect,
        USE_ORIG_PARAMS,
        "Has no effect on sharding: FSDP2 always keeps the original parameters, as FSDP1 did with "
        "`use_orig_params=True`. `fsdp_migrate.runtime` reads it only to decide whether attributes of parameters, such "
        "as `p.no_decay`, outlive sharding.",
        removed="Removed: FSDP2 always keeps the original parameters, as FSDP1 did with `use_orig_params=True`.",
    ),
}
