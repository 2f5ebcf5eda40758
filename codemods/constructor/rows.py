"""A row for each argument of FSDP1's constructor: its rule, what the runtime does with it, and its code in torch's words."""

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor import precision, sharding, wrapping
from fsdp_migrate.codemods.constructor.construction import (
    SUBCLASS,
    AtRunTime,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.layout import Code
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.imports import is_pure
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.facts.program import Program

CPU_OFFLOAD = Rule("FSDP201", "cpu-offload")
BACKWARD_PREFETCH = Rule("FSDP203", "backward-prefetch")
FORWARD_PREFETCH = Rule("FSDP204", "forward-prefetch")
LIMIT = Rule("FSDP205", "limit-all-gathers")
USE_ORIG_PARAMS = Rule("FSDP206", "use-orig-params")
DEVICE_ID = Rule("FSDP207", "device-id")
SYNC = Rule("FSDP208", "sync-module-states")
INIT_FUNCTION = Rule("FSDP210", "param-init-fn")
IGNORED = Rule("FSDP212", "ignored-modules")

# What sets an attribute of a parameter: `p.no_weight_decay = True`, `setattr(p, name, value)`.
SETTING = (
    r"\bsetattr\((?:p|w|param\w*),"
    r"|\b(?:p|w|param\w*|weight|bias)\.(?!data\b|grad\b|requires_grad\b)\w+ = "
)


@dataclass(frozen=True)
class Row:
    """What one argument means under FSDP2.

    Attributes:
        write: adds a value other than None to the code in torch's words and says what becomes of it, "" where `say` does;
            raises AtRunTime where the file does not show it, or torch has no words for it.
        rule: its rule; or a function that gives this and the text, by the value.
        text: what the runtime does with the value, and `off` where that is None or False, if it is something else.
    """

    write: Callable[[Construction, ast.expr, Code], str]
    rule: Rule | Callable[[Construction, Argument], tuple[Rule, str]]
    text: str = ""
    off: str = ""

    def say(self, construction: Construction, argument: Argument) -> tuple[Rule, str]:
        """Its rule, and what the runtime does with the value given."""
        if not isinstance(self.rule, Rule):
            return self.rule(construction, argument)
        constant = construction.constant(argument.value)
        is_off = constant is None or constant is False  # 0 is a device
        return self.rule, self.off if is_off and self.off else self.text


def in_torchs_words(construction: Construction) -> Code:
    """What the arguments of a call become in torch's words.

    Raises:
        AtRunTime: if one of them has none.
    """
    if not construction.is_written_out:
        raise AtRunTime("the call unpacks arguments")
    code = Code()
    for argument in construction.arguments:
        name, value, row = argument.name, argument.value, ROWS.get(argument.name)
        if row is None:  # the module
            continue
        # None switches prefetching off.
        is_default = construction.is_none(value) and name != "backward_prefetch"
        try:
            said = "" if is_default else row.write(construction, value, code)
            code.said[name] = said or row.say(construction, argument)[1]
        except AtRunTime:
            reason = f"{name} is not shown here, or has no word of torch's"
            raise AtRunTime(reason) from None
    _leave_attributes(construction, code)
    return code


def _leave_attributes(construction: Construction, code: Code) -> None:
    """Lets `like_fsdp1` leave behind what FSDP1's flat parameters lacked; `units` reads `use_orig_params` itself."""
    context, kept = construction.context, construction.keeps_attributes
    if not construction.like_fsdp1 or kept == "True":
        return
    paths = context.program.reach.of(context.file.path)
    if not context.program.tree.having(SETTING.encode()).isdisjoint(paths):
        code.like_fsdp1.append(f"parameter_attributes={kept}")
        if "use_orig_params" in code.said:
            code.said["use_orig_params"] += "; attributes of parameters stay only where they did"


def _no_effect(construction: Construction, value: ast.expr, code: Code) -> str:
    """An argument that means nothing under FSDP2, whatever its value."""
    if not is_pure(construction.context, value):
        raise AtRunTime
    return ""


def _only_off(construction: Construction, value: ast.expr, code: Code) -> str:
    """An argument that is left to the runtime unless it is None or False."""
    if construction.constant(value) is not False:
        raise AtRunTime
    return ""


def _say_offload(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    made = construction.context.value(argument.value)
    flag = _offloads(construction, made.node) if made is not None else ...
    if flag is ...:
        text = (
            "the runtime reads it: CPUOffloadPolicy() if its flag is set, else nothing is offloaded"
        )
        return CPU_OFFLOAD, text
    return (
        CPU_OFFLOAD,
        "the runtime offloads with CPUOffloadPolicy()"
        if flag
        else "nothing is offloaded, as by default",
    )


def _cpu_offload(construction: Construction, value: ast.expr, code: Code) -> str:
    flag = _offloads(construction, construction.shown(value))
    if flag is ...:
        raise AtRunTime
    if flag:
        code.shared["offload_policy"] = "CPUOffloadPolicy()"
        code.use(construction, "CPUOffloadPolicy")
    return "becomes CPUOffloadPolicy() in every unit" if flag else ""


def _offloads(construction: Construction, made: ast.expr) -> object:
    """The flag of `CPUOffload(True)`, None for None; `...` for any other expression or flag."""
    if isinstance(made, ast.Constant):
        return made.value
    if not isinstance(made, ast.Call) or construction.context.fsdp1(made.func) != "CPUOffload":
        return ...
    given = values_given(made)
    return construction.constant(given[0]) if given else False


def _backward_prefetch(construction: Construction, value: ast.expr, code: Code) -> str:
    member = construction.member(value, "BackwardPrefetch")
    if member == "BACKWARD_PRE":
        return "no effect under FSDP2, which always prefetches this way"
    if member == "BACKWARD_POST":
        return "FSDP2 prefetches one unit earlier, with the same numbers"
    raise AtRunTime


# What leaves some parameters whole, or on the CPU.
_MIXING = ("cpu_offload", "ignored_modules", "ignored_states")


def are_mixed(program: Program) -> bool:
    """Whether parameters may be no DTensors, or on the CPU, by what the constructors of a run are given; where that is not
    shown, by the words in its files."""
    every = [each for file in program.files for each in constructions(Context(file, program))]
    given = [(e, name, v) for e in every for name in _MIXING if (v := e.value(name)) is not None]
    for construction, name, value in given:
        made = construction.context.value(value) if name == "cpu_offload" else None
        if made is None or _offloads(construction, made.node):
            return True
    stars = (e.unseen or any(isinstance(v, ast.Starred) for v in e.call.args) for e in every)
    if every and not any(stars) and all(each.kind != SUBCLASS for each in every):
        return False
    return program.has("|".join((*_MIXING, "CPUOffload", "ignored_parameters")))


_SETTERS = {
    "torch.cuda.set_device",
    "torch.xpu.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
}


def _device_id(construction: Construction, value: ast.expr, code: Code) -> str:
    """Nothing, where the device is the current one: `fully_shard` moves the model there."""
    context = construction.context
    function = value.func if isinstance(value, ast.Call) else value
    if "torch.cuda.current_device" in context.dotted(function):
        return "is removed: fully_shard moves the model to the current device"
    made = context.value(value)
    nodes = ast.walk(made.node) if made is not None else ()
    can_be_cpu = any(isinstance(node, ast.Constant) and node.value == "cpu" for node in nodes)
    is_set = any(_sets(construction, call, value) for call in context.file.of(ast.Call))
    if can_be_cpu or not is_set or not is_pure(context, value):
        raise AtRunTime
    return "is removed: fully_shard moves the model to the current device, which is this"


def _sets(construction: Construction, call: ast.Call, device: ast.expr) -> bool:
    """Whether a call of the file makes a device current, by the same words, and not below the constructor."""
    context, here = construction.context, construction.call
    is_beside = context.file.function(call) is context.file.function(here)
    if len(call.args) != 1 or (is_beside and call.lineno > here.lineno):
        return False
    return (
        isinstance(call.func, ast.Name | ast.Attribute)
        and bool(context.dotted(call.func) & _SETTERS)
        and context.source(call.args[0]) == context.source(device)
    )


def _sync(construction: Construction, value: ast.expr, code: Code) -> str:
    """A broadcast in front of the sharding."""
    constant, device = construction.constant(value), construction.value("device_id")
    if constant is False:
        return ""
    if constant is not True:
        raise AtRunTime
    where = "" if device is None else f", device={construction.context.source(device)}"
    code.above.append(f"broadcast_module_states({{model}}{where})")
    code.use(construction, "broadcast_module_states", RUNTIME)
    return "parameters and buffers are broadcast from rank 0 before the model is sharded"


_IGNORED = Row(
    _only_off,
    IGNORED,
    "the runtime leaves these parameters whole in every unit",
    "None: nothing is ignored",
)
ROWS = {
    "process_group": Row(
        _only_off,
        sharding.GROUP,
        "the runtime makes a mesh of this group's ranks",
        "all ranks, the default",
    ),
    "sharding_strategy": Row(sharding.strategy, sharding.say),
    "cpu_offload": Row(_cpu_offload, _say_offload),
    "auto_wrap_policy": Row(wrapping.policy, wrapping.say),
    "backward_prefetch": Row(
        _backward_prefetch,
        BACKWARD_PREFETCH,
        "FSDP2 always prefetches as BACKWARD_PRE does",
        "the runtime switches prefetching off",
    ),
    "mixed_precision": Row(precision.precision, precision.say),
    "ignored_modules": _IGNORED,
    "param_init_fn": Row(
        _only_off,
        INIT_FUNCTION,
        "the runtime initializes each unit before it shards it, as FSDP1 did",
        "None: nothing to initialize",
    ),
    "device_id": Row(
        _device_id,
        DEVICE_ID,
        "the runtime makes this device the current one and moves the model there",
        "None: the model is on its device already",
    ),
    "sync_module_states": Row(
        _sync,
        SYNC,
        "the runtime broadcasts parameters and buffers from rank 0 before it shards",
        "nothing is broadcast, as by default",
    ),
    "forward_prefetch": Row(
        _only_off,
        FORWARD_PREFETCH,
        "the runtime records the order of the units and prefetches in that order",
        "off, as by default",
    ),
    "limit_all_gathers": Row(_no_effect, LIMIT, "no effect under FSDP2, which needs no limit"),
    "use_orig_params": Row(
        _no_effect,
        USE_ORIG_PARAMS,
        "no effect under FSDP2, which always keeps the original parameters",
    ),
    "ignored_states": _IGNORED,
    "device_mesh": Row(
        _only_off,
        sharding.MESH,
        "the runtime takes the mesh and reads its shape",
        "all ranks, the default",
    ),
}
RULES = (
    *(*sharding.RULES, *wrapping.RULES, *precision.RULES, CPU_OFFLOAD, BACKWARD_PREFETCH),
    *(FORWARD_PREFETCH, LIMIT, USE_ORIG_PARAMS, DEVICE_ID, SYNC, INIT_FUNCTION, IGNORED),
)
