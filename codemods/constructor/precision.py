"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit. And FSDP1, given a policy for wrapping,
keeps every BatchNorm in full precision.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.plain import (
    Plain,
    Said,
    Stays,
    bracketed,
    is_given,
    rewritten,
)
from fsdp_migrate.codemods.constructor.translate import casts, mp_policy, translated
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit import text
from fsdp_migrate.codemods.rule import Edit, Import, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.findings import Action

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
_WHEN_RUN = "mixed_precision is known only when the program runs"


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with a MixedPrecision."""
    if construction.is_none(argument.value):
        return POLICY, Said("None: full precision, the default")
    made = construction.context.value(argument.value)
    fields = _fields(construction.context, made.node) if made is not None else None
    if fields is None:
        return POLICY, Said("the runtime reads it when the program runs")
    if fields.get("keep_low_precision_grads", False) is not False:
        message = (
            "keep_low_precision_grads has no counterpart, and the runtime raises ValueError: "
            "cast the gradients before optimizer.step()"
        )
        return LOW_PRECISION_GRADS, Said(message, Action.MANUAL)
    if "buffer_dtype" in fields:
        return BUFFERS, Said(
            "the runtime makes it a MixedPrecisionPolicy and casts buffers to buffer_dtype"
        )
    return POLICY, Said(
        "the runtime makes it a MixedPrecisionPolicy and casts inputs at the root only, as FSDP1 did"
    )


def plain(construction: Construction) -> dict[str, Plain]:
    """What mixed precision is in plain PyTorch.

    Raises:
        Stays: if it needs the runtime, or is known only when the program runs.
    """
    value = construction.value("mixed_precision")
    if value is None:
        return {"mixed_precision": Plain("None: full precision, the default")}
    context = construction.context
    made = rewritten(
        context,
        value,
        lambda leaf: _policy(context, leaf),
        change=lambda leaf: _edits(context, leaf),
    )
    if made is None:
        raise Stays(_WHEN_RUN)
    every = [_fields(context, leaf) or {} for leaf in made.leaves]
    parts = [translated("mixed_precision", fields) for fields in every]
    buffers = {line for part in parts for line in part.above}
    flags = {(casts(fields, below=True), casts(fields, below=False)) for fields in every if fields}
    if len(flags) > 1 or len(buffers) > 1 or (buffers and len(every) > 1):
        raise Stays("the branches of mixed_precision differ in more than types")
    below, root = flags.pop() if flags else (False, True)
    where = "in every unit" if below else "at the root only" if root else "nowhere"
    message = f"becomes MixedPrecisionPolicy; inputs are cast {where}, as in FSDP1"
    if buffers:
        message += "; the runtime casts buffers"
    imports = {need.name: need for part in parts for need in part.imports}
    above = tuple(buffers)
    given = Plain(
        message, above=above, imports=tuple(imports.values()), edits=made.edits, removed=made.leaves
    )
    if "MixedPrecisionPolicy" not in imports:
        raise Stays("mixed_precision names no type for parameters or gradients")
    if not made.name and not is_given(construction, "auto_wrap_policy"):
        return {"mixed_precision": replace(given, shared={"mp_policy": made.text})}
    name = made.name or context.free("mp_policy", construction.call)
    if not made.name:
        above = (*above, f"{name} = {bracketed(made.text)}")
    child = name
    if below != root and is_given(construction, "auto_wrap_policy"):
        child = f"replace({name}, cast_forward_inputs={below})"
        given = replace(given, imports=(*given.imports, Import("dataclasses", "replace")))
    policies = {"child": {"mp_policy": child}, "root": {"mp_policy": name}}
    return {"mixed_precision": replace(given, above=above, **policies)}  # type: ignore[arg-type]


def without_buffers(part: Plain) -> Plain:
    """The plain form for a model that has no buffers to cast."""
    needs = tuple(need for need in part.imports if need.name != "cast_buffers")
    return replace(cast_behind(part), below=(), imports=needs)


def cast_behind(part: Plain) -> Plain:
    """The plain form for a model whose buffers have no values before it is sharded."""
    cast = tuple(line for line in part.above if line.startswith("cast_buffers"))
    return replace(
        part, above=tuple(e for e in part.above if e not in cast), below=cast or part.below
    )


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
    return mp_policy(fields, below=False)


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
    drops = text.drop_items(
        file.text, spans, [i for i, name in enumerate(names) if name not in new]
    )
    statement = file.statement(leaf)
    indent, end_of_line = text.indentation(file, statement), text.newline(file)
    lost = [each for drop in drops for each in text.comments_between(file, drop.start, drop.end)]
    above, _ = file.lines(statement)
    kept = "".join(f"{indent}{comment}{end_of_line}" for comment in lost)
    return [*([Edit(above, above, kept)] if kept else []), *edits, *drops]
