"""A row for each argument of FSDP1's constructor: its rule, what the runtime does with it, and its code in torch's words."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor import precision, sharding, wrapping
from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.part import AtRunTime, Part, bound, rewritten
from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.imports import is_pure
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import RUNTIME, TORCH

CPU_OFFLOAD = Rule(
    "FSDP201", "cpu-offload", "CPUOffload(offload_params=True) becomes CPUOffloadPolicy()"
)
BACKWARD_PREFETCH = Rule(
    "FSDP203", "backward-prefetch", "FSDP2 prefetches in backward as BACKWARD_PRE does"
)
FORWARD_PREFETCH = Rule(
    "FSDP204", "forward-prefetch", "forward_prefetch=True becomes a list of units to gather ahead"
)
LIMIT = Rule("FSDP205", "limit-all-gathers", "FSDP2 bounds the memory of all-gathers by itself")
USE_ORIG_PARAMS = Rule("FSDP206", "use-orig-params", "FSDP2 always keeps the original parameters")
DEVICE_ID = Rule("FSDP207", "device-id", "the device is the current device of the mesh's type")
SYNC = Rule(
    "FSDP208", "sync-module-states", "sync_module_states=True becomes a broadcast before sharding"
)
INIT_FUNCTION = Rule(
    "FSDP210", "param-init-fn", "param_init_fn runs on each unit before it is sharded"
)
IGNORED = Rule(
    "FSDP212", "ignored-modules", "ignored modules and parameters are ignored by every unit"
)


@dataclass(frozen=True)
class Row:
    """What one argument means under FSDP2.

    Attributes:
        say: its rule, and what the runtime does with the value given.
        part: its code in torch's words for a value other than None; raises AtRunTime where there is none.
    """

    say: Callable[[Construction, Argument], tuple[Rule, str]]
    part: Callable[[Construction, ast.expr], Part]


def parts_of(construction: Construction) -> dict[str, Part]:
    """What each argument adds to the code in torch's words, by name."""
    if not construction.is_written_out:
        raise AtRunTime("the call unpacks arguments")
    parts: dict[str, Part] = {}
    for argument in construction.arguments:
        if argument.name != "module":
            try:
                parts[argument.name] = _part_of(construction, argument)
            except AtRunTime:
                raise AtRunTime(
                    f"{argument.name} is not shown here, or has no word of torch's"
                ) from None
    # The device is current before anything is broadcast or sharded.
    return dict(sorted(parts.items(), key=lambda part: part[0] != "device_id"))


def _part_of(construction: Construction, argument: Argument) -> Part:
    row, is_none = ROWS[argument.name], construction.is_none(argument.value)
    if _may_change(construction, argument) or (is_none and argument.name == "backward_prefetch"):
        raise AtRunTime
    if is_none:
        return Part(row.say(construction, argument)[1])
    return row.part(construction, argument.value)


def _may_change(construction: Construction, argument: Argument) -> bool:
    """Whether the object behind a name is reached into: `offload.offload_params = True`."""
    file = construction.context.file
    if argument.name not in ("cpu_offload", "mixed_precision", "auto_wrap_policy"):
        return False
    reads = file.reads(argument.value) if isinstance(argument.value, ast.Name) else []
    return any(isinstance(file.parents[read], ast.Attribute) for read in reads)


def _fixed(
    rule: Rule, text: str, off: str = ""
) -> Callable[[Construction, Argument], tuple[Rule, str]]:
    """The rule and a text that is the same for all values, but for None and False where there is one for them."""

    def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
        constant = construction.constant(argument.value)
        is_off = constant is None or constant is False  # 0 is a device
        return rule, off if is_off and off else text

    return say


def _say_offload(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    made = construction.context.value(argument.value)
    text = _offloads(construction.context, made.node) if made is not None else ""
    if text == _OFF:
        return CPU_OFFLOAD, "nothing is offloaded, as by default"
    if text == _ON:
        return CPU_OFFLOAD, "the runtime offloads with CPUOffloadPolicy()"
    return (
        CPU_OFFLOAD,
        "the runtime reads it: CPUOffloadPolicy() if its flag is set, else nothing is offloaded",
    )


def _no_effect(rule: Rule, text: str) -> Row:
    """An argument that means nothing under FSDP2, whatever its value."""

    def part(construction: Construction, value: ast.expr) -> Part:
        if not is_pure(construction.context, value):
            raise AtRunTime
        return Part(text)

    return Row(_fixed(rule, text), part)


def _only_off(rule: Rule, text: str, off: str) -> Row:
    """An argument that torch has no words for, unless it is None or False."""

    def part(construction: Construction, value: ast.expr) -> Part:
        if construction.constant(value) is not False:
            raise AtRunTime
        return Part(off)

    return Row(_fixed(rule, text, off), part)


_ON, _OFF = "CPUOffloadPolicy()", "OffloadPolicy()"


def _cpu_offload(construction: Construction, value: ast.expr) -> Part:
    context = construction.context
    made = rewritten(
        context,
        value,
        lambda leaf: _offloads(context, leaf) or None,
        construction.call,
        name="offload_policy",
    )
    if made is None:
        raise AtRunTime
    if made.text == _OFF:
        return Part("nothing is offloaded, as by default", removed=made.removed)
    text, above = bound(construction, "offload_policy", made.text)
    policies = [_offloads(context, leaf) for leaf in made.leaves]
    texts, is_on = " ".join(policies), {*policies} == {_ON}
    names = [name for name in ("CPUOffloadPolicy", "OffloadPolicy") if f" {name}()" in f" {texts}"]
    return Part(
        "becomes CPUOffloadPolicy() in every unit" + ("" if is_on else ", where its flag is set"),
        shared={"offload_policy": text},
        above=above,
        imports=tuple(Import(TORCH, name, construction.call.func) for name in names),
        edits=made.edits,
        written=made.written,
        removed=made.removed,
    )


def _offloads(context: Context, leaf: ast.expr) -> str:
    """`CPUOffload(...)` or None as a policy of FSDP2; "" for what else a leaf can be."""
    if isinstance(leaf, ast.Constant) and not leaf.value:
        return _OFF
    if not isinstance(leaf, ast.Call) or context.fsdp1(leaf.func) != "CPUOffload":
        return ""
    given = values_given(leaf)
    if not given:
        return _OFF
    if isinstance(given[0], ast.Constant):
        return _ON if given[0].value else _OFF
    flag = context.source(given[0])
    if not isinstance(given[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        flag = f"({flag})"
    return f"{_ON} if {flag} else {_OFF}"


def _backward_prefetch(construction: Construction, value: ast.expr) -> Part:
    member = construction.member(value, "BackwardPrefetch")
    if member == "BACKWARD_PRE":
        return Part("no effect under FSDP2, which always prefetches this way")
    if member == "BACKWARD_POST":
        return Part("FSDP2 prefetches one unit earlier, with the same numbers")
    raise AtRunTime


_SETTERS = {
    "torch.cuda.set_device",
    "torch.xpu.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
}
_CURRENT = "torch.cuda.current_device"


def _device_id(construction: Construction, value: ast.expr) -> Part:
    """The device: `fully_shard` moves the model to the current one, so it has to be the current one."""
    context = construction.context
    if _is_current(context, value):
        return Part("is removed: fully_shard moves the model to the current device")
    if not is_pure(context, value) or not has_torch(context, construction.call):
        raise AtRunTime
    made = context.value(value)
    if made is not None and any(
        isinstance(node, ast.Constant) and node.value == "cpu" for node in ast.walk(made.node)
    ):
        raise AtRunTime
    text = context.source(value)
    if any(_sets(construction, call, text) for call in context.file.of(ast.Call)):
        return Part("is removed: fully_shard moves the model to the current device, which is this")
    if made is not None and (isinstance(made.node, ast.Constant) or _is_rank(made.node)):
        line = f"torch.cuda.set_device({text})"
        return Part(f"becomes {line}: fully_shard moves the model there", above=(line,))
    raise AtRunTime


def _is_current(context: Context, value: ast.expr) -> bool:
    """Whether a device is the current one, or None where there is no other."""
    if isinstance(value, ast.IfExp):
        branches = [b for b in (value.body, value.orelse) if getattr(b, "value", b) is not None]
        return len(branches) == 1 and _is_current(context, branches[0])
    function = value.func if isinstance(value, ast.Call) else value
    return _CURRENT in context.dotted(function)


def _is_rank(value: ast.expr) -> bool:
    """Whether a value is a number: `int(os.environ["LOCAL_RANK"])`."""
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") == "int"


def _sets(construction: Construction, call: ast.Call, device: str) -> bool:
    """Whether a call of the file makes a device current, by the same words, and not below the constructor."""
    context, here = construction.context, construction.call
    is_below = context.file.function(call) is context.file.function(here) and (
        call.lineno > here.lineno
    )
    return (
        not is_below
        and len(call.args) == 1
        and isinstance(call.func, ast.Name | ast.Attribute)
        and bool(context.dotted(call.func) & _SETTERS)
        and context.source(call.args[0]) == device
    )


def _sync(construction: Construction, value: ast.expr) -> Part:
    """A broadcast in front of the sharding."""
    if construction.constant(value) is False:
        return Part("nothing is broadcast, as by default")
    others = (construction.value("device_mesh"), construction.value("process_group"))
    context, sure = construction.context, construction.constant(value) is True
    written = [
        node for each in (value, construction.value("device_id")) if each for node in ast.walk(each)
    ]
    names_fsdp1 = any(node in context.references for node in written)
    if others != (None, None) or names_fsdp1 or not (sure or is_pure(context, value)):
        raise AtRunTime
    device = construction.value("device_id")
    where = "" if device is None else f", device={context.source(device)}"
    line = f"broadcast_module_states({{model}}{where})"
    return Part(
        "parameters and buffers are broadcast from rank 0 before the model is sharded",
        above=(line if sure else f"if {context.source(value)}:\n    {line}",),
        imports=(Import(RUNTIME, "broadcast_module_states", construction.call.func),),
    )


_IGNORED = _only_off(
    IGNORED, "the runtime leaves these parameters whole in every unit", "None: nothing is ignored"
)

ROWS = {
    "process_group": Row(sharding.say, sharding.group),
    "sharding_strategy": Row(sharding.say, sharding.strategy),
    "cpu_offload": Row(_say_offload, _cpu_offload),
    "auto_wrap_policy": Row(wrapping.say, wrapping.policy),
    "backward_prefetch": Row(
        _fixed(
            BACKWARD_PREFETCH,
            "FSDP2 always prefetches as BACKWARD_PRE does",
            "the runtime switches prefetching off",
        ),
        _backward_prefetch,
    ),
    "mixed_precision": Row(precision.say, precision.precision),
    "ignored_modules": _IGNORED,
    "param_init_fn": _only_off(
        INIT_FUNCTION,
        "the runtime initializes each unit before it shards it, as FSDP1 did",
        "None: nothing to initialize",
    ),
    "device_id": Row(
        _fixed(
            DEVICE_ID,
            "the runtime makes this device the current one and moves the model there",
            "None: the model is on its device already",
        ),
        _device_id,
    ),
    "sync_module_states": Row(
        _fixed(
            SYNC,
            "the runtime broadcasts parameters and buffers from rank 0 before it shards",
            "nothing is broadcast, as by default",
        ),
        _sync,
    ),
    "forward_prefetch": _only_off(
        FORWARD_PREFETCH,
        "the runtime records the order of the units and prefetches in that order",
        "off, as by default",
    ),
    "limit_all_gathers": _no_effect(LIMIT, "no effect under FSDP2, which needs no limit"),
    "use_orig_params": _no_effect(
        USE_ORIG_PARAMS, "no effect under FSDP2, which always keeps the original parameters"
    ),
    "ignored_states": _IGNORED,
    "device_mesh": Row(sharding.say, sharding.mesh),
}
RULES = (
    *sharding.RULES,
    *wrapping.RULES,
    *precision.RULES,
    CPU_OFFLOAD,
    BACKWARD_PREFETCH,
    FORWARD_PREFETCH,
    LIMIT,
    USE_ORIG_PARAMS,
    DEVICE_ID,
    SYNC,
    INIT_FUNCTION,
    IGNORED,
)
