"""`cpu_offload`: whether parameters are offloaded, as FSDP2's policy."""

import ast

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import Condition, chosen
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.mixed import offloads
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.file import values_given

CPU_OFFLOAD = Rule("FSDP201", "cpu-offload")
_NOT_OFFLOADED = "Has no effect: nothing is offloaded, which is the default."


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    made = construction.context.value(argument.value)
    flag: object = ...
    if made is not None:
        flag = offloads(construction, made.node)
    if flag is ...:
        text = (
            "Still works: `fsdp_migrate.runtime` reads it when the program runs, and offloads with `CPUOffloadPolicy()` "
            "if `offload_params` is true."
        )
        return CPU_OFFLOAD, text
    if flag:
        return (
            CPU_OFFLOAD,
            "Still works: `fsdp_migrate.runtime` offloads with `CPUOffloadPolicy()`.",
        )
    return CPU_OFFLOAD, _NOT_OFFLOADED


def cpu_offload(construction: Construction, value: ast.expr, code: Code) -> str:
    condition = code.offloaded = _offloaded(construction, value, code)
    if condition is False:
        return _NOT_OFFLOADED
    code.use(construction, "CPUOffloadPolicy")
    if condition is True:
        code.shared["offload_policy"] = "CPUOffloadPolicy()"
        return "Replaced by `offload_policy=CPUOffloadPolicy()`."
    code.use(construction, "OffloadPolicy")
    code.shared["offload_policy"] = f"CPUOffloadPolicy() if {condition} else OffloadPolicy()"
    return (
        "Replaced by `offload_policy`: `CPUOffloadPolicy()` where `offload_params` was true, else `OffloadPolicy()`, "
        "which does not offload."
    )


def _offloaded(construction: Construction, value: ast.expr, code: Code) -> Condition:
    """The condition under which parameters are offloaded."""
    match construction.shown_or_none(value):
        case ast.Constant(value=None | False):
            return False
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = [_offloaded(construction, each, code) for each in (body, orelse)]
            return chosen(construction.text(test), *parts)
        case ast.Call() as call if construction.context.fsdp1(call.func) == "CPUOffload":
            given = values_given(call)
            flag: object = False
            if given:
                flag = construction.constant(given[0])
            if flag is ...:
                return construction.text(given[0])
            return bool(flag)
    source = construction.text(value)
    if not all(part.isidentifier() for part in source.split(".")):
        name = construction.context.local("cpu_offload", construction.call)
        code.above.append(f"{name} = {source}")
        source = name
    return f"{source} and {source}.offload_params"
