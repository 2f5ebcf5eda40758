"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit. And FSDP1, given a policy for wrapping,
keeps every BatchNorm in full precision.
"""

import ast

from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.layout import Code
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import RUNTIME

POLICY = Rule("FSDP213", "mixed-precision")
BUFFERS = Rule("FSDP214", "buffer-dtype")
LOW_PRECISION_GRADS = Rule("FSDP216", "keep-low-precision-grads")
RULES = (POLICY, BUFFERS, LOW_PRECISION_GRADS)

# FSDP1's fields in their order, with their defaults.
_FIELDS = {
    "param_dtype": None,
    "reduce_dtype": None,
    "buffer_dtype": None,
    "keep_low_precision_grads": False,
    "cast_forward_inputs": False,
    "cast_root_forward_inputs": True,
    "_module_classes_to_ignore": ...,
}
# Where a model may get a BatchNorm from: FSDP1, given a policy, makes it a unit in full precision.
_NORMS = rb"BatchNorm|batch_norm|\btorchvision\.models|\btimm\b"


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a MixedPrecision."""
    if construction.is_none(argument.value):
        return POLICY, "None: full precision, the default"
    made = construction.context.value(argument.value)
    fields = _fields(construction.context, made.node) if made is not None else None
    if fields is None:
        return POLICY, "the runtime reads it when the program runs"
    if "keep_low_precision_grads" in fields:
        return LOW_PRECISION_GRADS, (
            "keep_low_precision_grads has no counterpart, and the runtime raises ValueError: "
            "cast the gradients before optimizer.step()"
        )
    if "buffer_dtype" in fields:
        text = "the runtime makes it a MixedPrecisionPolicy and casts buffers to buffer_dtype"
        return BUFFERS, text
    return POLICY, "the runtime makes it a MixedPrecisionPolicy and casts inputs where FSDP1 did"


def precision(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mp_policy=`, where the file shows the types, and nothing but types is given.

    Since torch 2.15 FSDP2 reduces in the parameters' own type where it is not told another; FSDP1 reduced in `param_dtype`.
    """
    context, has_policy = construction.context, construction.value("auto_wrap_policy") is not None
    paths = context.program.reach.of(context.file.path)
    if has_policy and not context.program.tree.having(_NORMS).isdisjoint(paths):
        raise AtRunTime
    types = _fields(context, construction.shown(value))
    if types is None or not types.keys() <= {"param_dtype", "reduce_dtype", "buffer_dtype"}:
        raise AtRunTime
    message = "becomes MixedPrecisionPolicy; inputs are cast at the root only, as in FSDP1"
    buffers = types.pop("buffer_dtype", None)
    if buffers is not None:
        message += f"; buffers are cast to {buffers}"
        if construction.like_fsdp1:
            code.like_fsdp1.append(f"buffer_dtype={buffers}")
        else:
            code.below.append(f"cast_buffers({{model}}, {buffers})")
            code.use(construction, "cast_buffers", RUNTIME)
    if not types:
        return message
    if "param_dtype" in types and "reduce_dtype" not in types:
        if "(" in types["param_dtype"]:
            raise AtRunTime  # it would be called twice
        types["reduce_dtype"] = types["param_dtype"]
    given = (f"{name}={types[name]}" for name in _FIELDS if name in types)
    policy = f"MixedPrecisionPolicy({', '.join(given)})"
    code.use(construction, "MixedPrecisionPolicy")
    if has_policy:
        name = context.free("mp_policy", construction.call)
        code.above.append(f"{name} = {policy}")
        code.child["mp_policy"] = f"replace({name}, cast_forward_inputs=False)"
        code.imports.append(Import("dataclasses", "replace"))
        policy = name
    code.root["mp_policy"] = policy
    return message


def _fields(context: Context, call: ast.expr) -> dict[str, str] | None:
    """What a `MixedPrecision(...)` of this file gives other than the defaults, as source."""
    if not isinstance(call, ast.Call) or context.fsdp1(call.func) != "MixedPrecision":
        return None
    names = [*_FIELDS][: len(call.args)] + [str(keyword.arg) for keyword in call.keywords]
    values = values_given(call)
    known = len({*names} & {*_FIELDS}) == len(values)
    if not known or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return {
        name: context.source(value)
        for name, value in zip(names, values, strict=True)
        if not isinstance(value, ast.Constant) or value.value not in (None, _FIELDS[name])
    }
