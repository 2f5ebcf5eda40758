"""The arguments of FSDP1's constructor that need no module of their own: a table, at the end, says what each means."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from fsdp_migrate.codemods.constructor import sharding
from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.plain import (
    Plain,
    Said,
    Stays,
    bound,
    bracketed,
    device_type,
    has_torch,
    is_pure,
    rewritten,
)
from fsdp_migrate.codemods.constructor.translate import offload_policy
from fsdp_migrate.codemods.context import Context
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

_SETTERS = {
    "torch.cuda.set_device",
    "torch.xpu.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
}


@dataclass(frozen=True)
class Meaning:
    """What one of these arguments means under FSDP2.

    Attributes:
        rule: its rule.
        said: what the bridge does with it.
        off: what to say instead where the argument is None or False; empty if `said` holds there, too.
        plain: its plain form; Stays if it needs the runtime.
    """

    rule: Rule
    said: str
    off: str
    plain: Callable[[Construction], Plain]


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with one of these arguments."""
    meaning = ARGUMENTS[argument.name]
    constant = construction.constant(argument.value)
    off = constant is None or constant is False  # 0 is a device
    if argument.name == "cpu_offload":
        made = construction.context.value(argument.value)
        off = off or (
            made is not None and _offloads(construction.context, made.node) == offload_policy(False)
        )
    return meaning.rule, Said(meaning.off if off and meaning.off else meaning.said)


def plain(construction: Construction, name: str) -> dict[str, Plain]:
    """What one of these arguments is in plain PyTorch, by its name.

    Raises:
        Stays: if it needs the runtime.
    """
    return {name: ARGUMENTS[name].plain(construction)}


def _no_effect(name: str) -> Callable[[Construction], Plain]:
    """An argument that means nothing under FSDP2, whatever its value."""

    def translate(construction: Construction) -> Plain:
        value = construction.value(name)
        if value is not None and not is_pure(construction.context, value):
            raise Stays(f"evaluating {name} may have side effects")
        return Plain(ARGUMENTS[name].said)

    return translate


def _only_off(name: str) -> Callable[[Construction], Plain]:
    """An argument that becomes plain where it is None or False; any other value stays on the bridge."""

    def translate(construction: Construction) -> Plain:
        value = construction.value(name)
        if value is not None and construction.constant(value) is not False:
            raise Stays(f"{name}: {ARGUMENTS[name].said}")
        return Plain(ARGUMENTS[name].off)

    return translate


def _cpu_offload(construction: Construction) -> Plain:
    value = construction.value("cpu_offload")
    if value is None:
        return Plain(ARGUMENTS["cpu_offload"].off)
    context = construction.context
    made = rewritten(
        context, value, lambda leaf: _offloads(context, leaf) or None, name="offload_policy"
    )
    if made is None:
        raise Stays("cpu_offload is known only when the program runs")
    part = Plain(edits=made.edits, statements=made.statements, removed=made.removed)
    if made.text == offload_policy(False):
        return replace(part, message=ARGUMENTS["cpu_offload"].off)
    several = len(made.leaves) > 1  # a plain `CPUOffloadPolicy()` needs no name
    text, above = bound(construction, "offload_policy" if several else "", made.text)
    texts = " ".join(_offloads(context, leaf) for leaf in made.leaves)
    names = sorted({*re.findall(r"\w*OffloadPolicy", texts)})
    return replace(
        part,
        message="becomes CPUOffloadPolicy() in every unit",
        shared={"offload_policy": text},
        above=above,
        imports=tuple(Import(TORCH, name) for name in names),
    )


def _offloads(context: Context, leaf: ast.expr) -> str:
    """`CPUOffload(...)` or None as a policy of FSDP2; "" for what else a leaf can be."""
    if isinstance(leaf, ast.Constant) and leaf.value is None:
        return offload_policy(False)
    if not isinstance(leaf, ast.Call) or context.fsdp1(leaf.func) != "CPUOffload":
        return ""
    given = values_given(leaf)
    if not given:
        return offload_policy(False)
    if isinstance(given[0], ast.Constant):
        return offload_policy(bool(given[0].value))
    flag = context.source(given[0])
    if not isinstance(given[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        flag = f"({flag})"
    return f"{offload_policy(True)} if {flag} else {offload_policy(False)}"


def _backward_prefetch(construction: Construction) -> Plain:
    given = [each for each in construction.arguments if each.name == "backward_prefetch"]
    if not given:
        return Plain()
    member = construction.member(given[0].value, "BackwardPrefetch")
    if member == "BACKWARD_PRE":
        return Plain("no effect under FSDP2, which always prefetches this way")
    if member == "BACKWARD_POST":
        return Plain("FSDP2 prefetches one unit earlier, with the same numbers")
    raise Stays("backward_prefetch: the runtime prefetches as this argument says")


def _device_id(construction: Construction) -> Plain:
    """The device: `fully_shard` moves the model to the current one, so it has to be the current one."""
    value = construction.value("device_id")
    if value is None:
        return Plain(ARGUMENTS["device_id"].off)
    context = construction.context
    if not is_pure(context, value):
        raise Stays("evaluating device_id may have side effects")
    function = value.func if isinstance(value, ast.Call) else value
    if "torch.cuda.current_device" in context.dotted(function):
        return Plain("fully_shard moves the model to the current device")
    if device_type(construction) == "cpu" and construction.value("process_group") is not None:
        return Plain("no effect: the mesh is on the CPU")
    made = context.value(value)
    if made is not None and any(_is_cpu(node) for node in ast.walk(made.node)):
        raise Stays("device_id is the CPU, which is not the current device where there is a GPU")
    if is_set_before(construction, value):
        return Plain("fully_shard moves the model to the current device, which the program sets")
    if not has_torch(context, construction.call) or device_type(construction) != "cuda":
        raise Stays("device_id: the runtime makes this device the current one")
    line = f"torch.cuda.set_device({_copied(construction, value)})"
    return Plain(
        f"becomes {line}: fully_shard moves the model to the current device", above=(line,)
    )


def _is_cpu(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "cpu"


def is_set_before(construction: Construction, value: ast.expr) -> bool:
    """Whether this file makes a device current before the constructor runs, and perhaps this one."""
    context = construction.context
    here = context.file.function(construction.call)
    setters = [
        call
        for call in context.file.of(ast.Call)
        if isinstance(call.func, ast.Name | ast.Attribute)
        and context.dotted(call.func) & _SETTERS
        and (context.file.function(call) is not here or call.lineno < construction.call.lineno)
    ]
    return bool(setters) and all(_may_set(construction, call, value) for call in setters)


def _may_set(construction: Construction, setter: ast.Call, value: ast.expr) -> bool:
    """Whether a call can make this very device current: a number can only be the same number."""
    if len(setter.args) != 1:
        return False
    return len({construction.constant(each) for each in (setter.args[0], value)}) == 1


def _sync(construction: Construction) -> Plain:
    """A broadcast in front of the sharding, over the mesh where there is one."""
    value = construction.value("sync_module_states")
    if value is None or construction.constant(value) is False:
        return Plain(ARGUMENTS["sync_module_states"].off)
    context, sure = construction.context, construction.constant(value) is True
    if not sure and not (is_pure(context, value) and construction.constant(value) is ...):
        raise Stays("sync_module_states: the runtime broadcasts before it shards")
    device, parts = construction.value("device_id"), sharding.plain(construction)
    mesh = [part.shared["mesh"] for part in parts.values() if "mesh" in part.shared]
    where = f", mesh={mesh[0]}" if mesh else ""
    if device is not None and not mesh:
        where = f", device={_copied(construction, device)}"
    line = f"broadcast_module_states({{model}}{where})"
    if not sure:
        line = f"if {bracketed(_copied(construction, value))}:\n    {line}"
    return Plain(
        "parameters and buffers are broadcast from rank 0 before the model is sharded",
        above=(line,),
        imports=(Import(RUNTIME, "broadcast_module_states", construction.call.func),),
    )


def _copied(construction: Construction, value: ast.expr) -> str:
    """The source of a value, for new code.

    Raises:
        Stays: if the value names FSDP1: imports are not swapped in a copy.
    """
    if any(node in construction.context.references for node in ast.walk(value)):
        raise Stays(f"{construction.context.source(value)}: the value is a name of FSDP1")
    return construction.context.source(value)


_LEFT_WHOLE = "the runtime leaves these parameters whole in every unit"
_NOTHING_IGNORED = "None: nothing is ignored"
ARGUMENTS = {
    "cpu_offload": Meaning(
        CPU_OFFLOAD,
        "the runtime offloads with CPUOffloadPolicy()",
        "nothing is offloaded, as by default",
        _cpu_offload,
    ),
    "backward_prefetch": Meaning(
        BACKWARD_PREFETCH,
        "FSDP2 always prefetches as BACKWARD_PRE does",
        "the runtime switches prefetching off",
        _backward_prefetch,
    ),
    "forward_prefetch": Meaning(
        FORWARD_PREFETCH,
        "the runtime records the order of the units and prefetches in that order",
        "off, as by default",
        _only_off("forward_prefetch"),
    ),
    "limit_all_gathers": Meaning(
        LIMIT,
        "no effect under FSDP2, which needs no limit",
        "",
        _no_effect("limit_all_gathers"),
    ),
    "use_orig_params": Meaning(
        USE_ORIG_PARAMS,
        "no effect under FSDP2, which always keeps the original parameters",
        "",
        _no_effect("use_orig_params"),
    ),
    "device_id": Meaning(
        DEVICE_ID,
        "the runtime makes this device the current one and moves the model there",
        "None: the model is on its device already",
        _device_id,
    ),
    "sync_module_states": Meaning(
        SYNC,
        "the runtime broadcasts parameters and buffers from rank 0 before it shards",
        "nothing is broadcast, as by default",
        _sync,
    ),
    "param_init_fn": Meaning(
        INIT_FUNCTION,
        "the runtime initializes each unit before it shards it, as FSDP1 did",
        "None: nothing to initialize",
        _only_off("param_init_fn"),
    ),
    "ignored_modules": Meaning(
        IGNORED, _LEFT_WHOLE, _NOTHING_IGNORED, _only_off("ignored_modules")
    ),
    "ignored_states": Meaning(IGNORED, _LEFT_WHOLE, _NOTHING_IGNORED, _only_off("ignored_states")),
}
RULES = tuple(dict.fromkeys(meaning.rule for meaning in ARGUMENTS.values()))
