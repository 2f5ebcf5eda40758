"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit. And FSDP1, given a policy for wrapping,
keeps every BatchNorm in full precision.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.part import AtRunTime, Part, bracketed, rewritten
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit import text
from fsdp_migrate.codemods.rule import Edit, Import, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.facts.reach import reach_of

POLICY = Rule(
    "FSDP213",
    "mixed-precision",
    "MixedPrecision becomes MixedPrecisionPolicy, with inputs cast at the root only",
)
BUFFERS = Rule("FSDP214", "buffer-dtype", "buffer_dtype casts buffers, which FSDP2 does not")
LOW_PRECISION_GRADS = Rule(
    "FSDP216", "keep-low-precision-grads", "keep_low_precision_grads has no counterpart"
)
RULES = (POLICY, BUFFERS, LOW_PRECISION_GRADS)

_FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)
_TYPES = ("param_dtype", "reduce_dtype")
# Where a model may get a BatchNorm from: FSDP1, given a policy, makes it a unit in full precision.
_NORMS = re.compile(r"BatchNorm|batch_norm|\btorchvision\.models|\btimm\b")


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a MixedPrecision."""
    if construction.is_none(argument.value):
        return POLICY, "None: full precision, the default"
    made = construction.context.value(argument.value)
    fields = _fields(construction.context, made.node) if made is not None else None
    if fields is None:
        return POLICY, "the runtime reads it when the program runs"
    if fields.get("keep_low_precision_grads", False) is not False:
        return LOW_PRECISION_GRADS, (
            "keep_low_precision_grads has no counterpart, and the runtime raises ValueError: "
            "cast the gradients before optimizer.step()"
        )
    if "buffer_dtype" in fields:
        text = "the runtime makes it a MixedPrecisionPolicy and casts buffers to buffer_dtype"
        return BUFFERS, text
    return POLICY, (
        "the runtime makes it a MixedPrecisionPolicy and casts inputs at the root only, as FSDP1 did"
    )


def precision(construction: Construction, value: ast.expr) -> Part:
    """`mp_policy=`, where the file shows the types."""
    context, has_policy = construction.context, construction.value("auto_wrap_policy") is not None
    reach = reach_of(context.program)
    if has_policy and any(_NORMS.search(reach.text(path)) for path in reach.of(context.file.path)):
        raise AtRunTime
    made = rewritten(
        context,
        value,
        lambda leaf: _policy(context, leaf),
        construction.call,
        change=lambda leaf: _edits(context, leaf),
    )
    if made is None:
        raise AtRunTime
    every = [_fields(context, leaf) or {} for leaf in made.leaves]
    buffers = {fields.get("buffer_dtype") for fields in every}
    flags = {(casts(fields, below=True), casts(fields, below=False)) for fields in every if fields}
    if len(flags) > 1 or len(buffers) > 1:
        raise AtRunTime
    below, root = flags.pop() if flags else (False, True)
    buffer = buffers.pop() if buffers else None
    where = "in every unit" if below else "at the root only" if root else "nowhere"
    message = f"becomes MixedPrecisionPolicy; inputs are cast {where}, as in FSDP1"
    options = ""
    calls: tuple[tuple[str, Import], ...] = ()
    if buffer is not None:
        message += f"; buffers are cast to {buffer}"
        options = f"buffer_dtype={buffer}"
        need = Import(RUNTIME, "cast_buffers", construction.call.func)
        calls = ((f"cast_buffers({{model}}, {buffer})", need),)
    if not any(name in fields for fields in every for name in _TYPES):
        if made.name:
            raise AtRunTime
        return Part(message, like_fsdp1=options, below=calls, removed=made.removed)
    above: tuple[str, ...] = ()
    imports = [Import(TORCH, "MixedPrecisionPolicy", construction.call.func)]
    child = name = made.text
    if has_policy:
        name = made.name or context.free("mp_policy", construction.call)
        above = () if made.name else (f"{name} = {bracketed(made.text)}",)
        child = name
        if below != root:
            child = f"replace({name}, cast_forward_inputs={below})"
            imports.append(Import("dataclasses", "replace"))
    return Part(
        message,
        child={"mp_policy": child},
        root={"mp_policy": name},
        above=above,
        like_fsdp1=options,
        below=calls,
        imports=tuple(imports),
        edits=made.edits,
        written=made.written,
        removed=made.removed,
    )


def mp_policy(fields: Mapping[str, object]) -> str:
    """The policy of the root, as source.

    FSDP1 casts the inputs of the root for either flag (`_runtime_utils.py`, `_root_pre_forward` and `_pre_forward`), and
    those below for `cast_forward_inputs` alone. Since torch 2.15 FSDP2 reduces in the parameters' own type where it is not
    told another; FSDP1 reduced in `param_dtype`.
    """
    if "param_dtype" in fields:
        fields = {"reduce_dtype": fields["param_dtype"], **fields}
    given = [f"{name}={fields[name]}" for name in _TYPES if name in fields]
    if not casts(fields, below=False):
        given.append("cast_forward_inputs=False")
    return f"MixedPrecisionPolicy({', '.join(given)})"


def casts(fields: Mapping[str, object], *, below: bool) -> bool:
    """Whether a unit's inputs are cast: the root's, or those of the units below it."""
    everywhere = bool(fields.get("cast_forward_inputs", False))
    return everywhere or (not below and bool(fields.get("cast_root_forward_inputs", True)))


def _fields(context: Context, call: ast.expr) -> dict[str, object] | None:
    """The fields of a `MixedPrecision(...)` of this file that are not None: flags as they are, all else as source."""
    if not isinstance(call, ast.Call) or context.fsdp1(call.func) != "MixedPrecision":
        return None
    names = [*_FIELDS[: len(call.args)], *(keyword.arg for keyword in call.keywords)]
    values = values_given(call)
    known = len({*names} & {*_FIELDS}) == len(values)
    if not known or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    given = {}
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, ast.Constant):
            given[str(name)] = context.source(value)
        elif value.value is not None:
            given[str(name)] = value.value  # type: ignore[assignment]
    return given  # type: ignore[return-value]


def _policy(context: Context, leaf: ast.expr) -> str | None:
    """A `MixedPrecision(...)` or None as a policy of FSDP2; None for what else a leaf can be."""
    if isinstance(leaf, ast.Constant) and leaf.value is None:
        return "MixedPrecisionPolicy()"
    fields = _fields(context, leaf)
    flags = [(fields or {}).get(name, False) for name in _FIELDS[3:6]]
    if fields is None or not all(isinstance(flag, bool) for flag in flags):
        return None
    if flags[0] or "_module_classes_to_ignore" in fields:
        return None
    if "reduce_dtype" not in fields and "(" in str(fields.get("param_dtype", "")):
        return None  # it would be called twice
    return mp_policy(fields)


def _edits(context: Context, leaf: ast.expr) -> list[Edit]:
    """`bf16 = MixedPrecision(...)` becomes `bf16 = MixedPrecisionPolicy(...)` in the same layout, comments kept."""
    fields = _fields(context, leaf)
    assert isinstance(leaf, ast.Call)
    assert fields is not None
    file = context.file
    new: dict[str, str] = {n: n for n in ("param_dtype", "reduce_dtype") if n in fields}
    if not casts(fields, below=False):
        new["cast_root_forward_inputs"] = "cast_forward_inputs"
    names = [*_FIELDS[: len(leaf.args)], *(keyword.arg for keyword in leaf.keywords)]
    values = values_given(leaf)
    spans = [file.span(each) for each in (*leaf.args, *leaf.keywords)]
    edits = [context.replace(leaf.func, "MixedPrecisionPolicy")]
    for (start, _), name, value in zip(spans, names, values, strict=True):
        here = file.span(value)[0]
        if name in new and (start == here or new[name] != name):
            edits.append(Edit(start, here, f"{new[name]}="))
        if name == "param_dtype" and "reduce_dtype" not in fields:
            end = file.span(value)[1]
            edits.append(Edit(end, end, f", reduce_dtype={fields[name]}"))
    drops = text.drop_items(
        file.text, spans, [i for i, name in enumerate(names) if name not in new]
    )
    statement = file.statement(leaf)
    indent, end_of_line = text.indentation(file, statement), text.newline(file)
    lost = [each for drop in drops for each in text.comments_between(file, drop.start, drop.end)]
    above, _ = file.lines(statement)
    kept = "".join(f"{indent}{comment}{end_of_line}" for comment in lost)
    return [*([Edit(above, above, kept)] if kept else []), *edits, *drops]
