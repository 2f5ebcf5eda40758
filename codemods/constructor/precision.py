"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit. And FSDP1, given a policy for wrapping,
keeps every BatchNorm in full precision.
"""

import ast
from collections.abc import Sequence

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.flow import Flow, defined
from fsdp_migrate.codemods.constructor.options import (
    FIELDS,
    Precision,
    policy_text,
    precision_of,
    shared_buffer_dtype,
)
from fsdp_migrate.codemods.context import keyword
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule

POLICY = Rule("FSDP213", "mixed-precision")
BUFFERS = Rule("FSDP214", "buffer-dtype")
LOW_PRECISION_GRADS = Rule("FSDP216", "keep-low-precision-grads")

# Where a model may get a BatchNorm from: FSDP1, given a policy, makes it a unit in full precision.
_NORMS = rb"BatchNorm|batch_norm"
_FULL = ("torch.float32", "torch.float")
_NORMS_REDUCED = " Gradients of a BatchNorm are now reduced in `reduce_dtype`, too; FSDP1 reduced them in float32."
_BECOMES = "Replaced by `MixedPrecisionPolicy`."
_ROOT_CASTS = "Inner units get `cast_forward_inputs=False`, so that only the root casts its inputs, as under FSDP1."


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a MixedPrecision."""
    if construction.is_none(argument.value):
        return POLICY, "Has no effect: full precision is the default."
    precision = _shown(construction, argument.value)
    if precision is None:
        return POLICY, "Still works: `fsdp_migrate.runtime` reads it when the program runs."
    if "keep_low_precision_grads" in precision.sources:
        return LOW_PRECISION_GRADS, (
            "FSDP2 has no `keep_low_precision_grads`: gradients get the dtype of the parameters. "
            "If you need them in low precision, cast them before `optimizer.step()`."
        )
    if "buffer_dtype" in precision.sources:
        text = (
            "Still works: `fsdp_migrate.runtime` turns it into a `MixedPrecisionPolicy` and casts buffers to "
            "`buffer_dtype`."
        )
        return BUFFERS, text
    return (
        POLICY,
        "Still works: `fsdp_migrate.runtime` turns it into a `MixedPrecisionPolicy` and casts the same inputs as FSDP1.",
    )


def _shown(construction: Construction, value: ast.expr) -> Precision | None:
    context = construction.context
    made = None
    if value in context.file.parents:
        made = context.value(value)
    if made is None:
        return None
    return precision_of(context.program, made.file, made.node)


def precision(construction: Construction, value: ast.expr, code: Code) -> str:
    """`mp_policy=`: the program's own policy rewritten where it is made, or one that is made from FSDP1's here."""
    program = construction.context.program
    flow = construction.flow(value)
    found = [precision_of(program, end.file, end.node) for end in flow.ends]
    given = [each for each in found if each is not None and each.sources]
    fields = {name for each in given for name in each.sources}
    if "_module_classes_to_ignore" in fields:
        raise AtRunTime
    is_said = value in code.rewritten.casting
    has_type = "param_dtype" in fields
    code.casts = has_type or flow.unknown or None in found
    told = _keep_norms(construction, code, given)
    casts = is_said or not code.casts or _literal(given, "cast_forward_inputs")
    casts_root = not code.casts or _literal(given, "cast_root_forward_inputs")
    source, buffers = _policy(construction, value, code, flow, found)
    if buffers and code.exempt and construction.like_fsdp1:
        raise AtRunTime  # which leaves the buffers of a BatchNorm as they are
    if buffers and construction.like_fsdp1:
        told += f" `like_fsdp1` casts the buffers to `{buffers}`, as FSDP1 did."
        code.like_fsdp1.append(f"buffer_dtype={buffers}")
    elif buffers:
        told += (
            f" A loop casts the buffers to `{buffers}`, as FSDP1 did. They are now saved in this dtype, too; FSDP1 saved them "
            "in the dtype that the model was made with."
        )
        code.cast = buffers
        # A policy that casts nothing has no type, either.
        is_read = buffers.startswith(f"{source}.")
        code.cast_can_be_none |= is_read and len(given) < len(found)
    if source == "MixedPrecisionPolicy()":
        return f"Removed: parameters and gradients keep their dtype, which is the default.{told}"
    code.use(construction, "MixedPrecisionPolicy")
    is_root_cast = bool(casts_root or casts)
    code.root["mp_policy"] = _with_casts(source, code, casts=is_root_cast)
    if not code.loop:
        return f"{_BECOMES}{told}"
    if is_said:
        # As under FSDP1, the root casts its inputs, whatever the units below it do.
        code.root["mp_policy"] = f"replace({source}, cast_forward_inputs=True)"
        code.imports.append(Import("dataclasses", "replace"))
    code.child["mp_policy"] = _with_casts(source, code, casts=bool(casts))
    if is_root_cast and (is_said or not casts):
        return f"{_BECOMES} {_ROOT_CASTS}{told}"
    return f"{_BECOMES}{told}"


def _keep_norms(construction: Construction, code: Code, given: Sequence[Precision]) -> str:
    """Makes every BatchNorm a unit in full precision; where that would decide the type of its gradients alone, says so."""
    if not code.loop or not _can_have_batch_norms(construction):
        return ""
    if not code.casts and not construction.like_fsdp1:
        if "reduce_dtype" in {name for each in given for name in each.sources}:
            return _NORMS_REDUCED
        return ""
    code.exempt = "torch.nn.modules.batchnorm._BatchNorm"
    code.imports.append(Import("torch", ""))
    return ""


def _with_casts(source: str, code: Code, *, casts: bool) -> str:
    """The policy of units that cast their inputs, or do not."""
    if casts:
        return source
    return _without_casts(source, code)


def _literal(given: Sequence[Precision], field: str) -> object:
    """The value of a field that all objects give alike, as a literal.

    Raises:
        AtRunTime: if they do not.
    """
    values = {each.constant(field) for each in given} or {FIELDS[field]}
    if len(values) > 1 or ... in values:
        raise AtRunTime
    return next(iter(values))


def _policy(
    construction: Construction,
    value: ast.expr,
    code: Code,
    flow: Flow,
    found: Sequence[Precision | None],
) -> tuple[str, str]:
    """FSDP2's policy as source, and the dtype of buffers: "" where they stay as they are."""
    every = [each for each in found if each is not None]
    if value in code.rewritten.values:
        field = shared_buffer_dtype(every)
        literal = {each.sources.get("buffer_dtype") for each in every if each.sources} - {None}
        source = policy_text(construction.context, value, code.rewritten)
        source = _named(construction, source, code, needs_name=bool(code.loop) or field is not None)
        is_always = all(each.sources for each in every)
        own = ""
        if is_always and len(literal) == 1:
            own = _own_dtype(construction, flow, code)
        return source, own or _buffers(source, field, literal, is_always=is_always)
    if len(every) == 1 == len(found) and not flow.unknown:
        again = _again(construction, every[0], flow.ends[0].node, code)
        if again is not None:
            return again
    may_be_none = flow.unknown or None in found or construction.can_be_none(value)
    return _made_from(construction, value, code, may_be_none)


def _without_casts(source: str, code: Code) -> str:
    """A policy that casts no inputs."""
    if source.endswith(")"):
        return f"{source.removesuffix(')')}, cast_forward_inputs=False)"
    code.imports.append(Import("dataclasses", "replace"))
    return f"replace({source}, cast_forward_inputs=False)"


def _named(construction: Construction, source: str, code: Code, *, needs_name: bool) -> str:
    """A policy by a name, where it is used several times."""
    if not needs_name or source.isidentifier() or source == "MixedPrecisionPolicy()":
        return source
    name = construction.context.local("mp_policy", construction.call)
    code.above.append(f"{name} = {source}")
    return name


def _own_dtype(construction: Construction, flow: Flow, code: Code) -> str:
    """The name that gives `buffer_dtype` in the function of the constructor, as source, where it means the same there."""
    file = construction.context.file
    place = list(FIELDS).index("buffer_dtype")
    function = file.function(construction.call)
    sources = set[str]()
    for end in flow.ends:
        given = None
        if isinstance(end.node, ast.Call):
            given = keyword(end.node, "buffer_dtype", place)
        if given is None or end.file is not file or file.function(end.node) is not function:
            return ""
        is_name = all(part.isidentifier() for part in file.source(given).split("."))
        if not is_name or not construction.is_same(given):
            return ""
        sources.add(file.source(given))
        code.cast_can_be_none |= construction.can_be_none(given)
    only = ""
    if len(sources) == 1:
        only = sources.pop()
    if only in _FULL:
        return ""
    return only


def _buffers(source: str, field: str | None, literal: set[str | None], *, is_always: bool) -> str:
    """The dtype that buffers are cast to, as source; "" where they stay as they are."""
    if field is None or literal <= {*_FULL}:
        return ""
    only = None
    if len(literal) == 1 and is_always:
        only = next(iter(literal))
    # In the call itself, or of torch: it reads the same at the constructor.
    if only is not None and (field == "itself" or only.startswith("torch.")):
        return only
    return f"{source}.{field}"


def _again(
    construction: Construction, given: Precision, made: ast.expr, code: Code
) -> tuple[str, str] | None:
    """FSDP2's policy beside an object of FSDP1's that stays: its dtypes are written again, where they mean the same."""
    types = {n: s for n, s in given.sources.items() if n in ("param_dtype", "reduce_dtype")}
    if "(" in "".join(types.values()) or not construction.is_same(made):
        return None
    if "param_dtype" in types and "reduce_dtype" not in types:
        types["reduce_dtype"] = types["param_dtype"]
    written = ", ".join(f"{n}={types[n]}" for n in ("param_dtype", "reduce_dtype") if n in types)
    source = f"MixedPrecisionPolicy({written})"
    buffers = given.sources.get("buffer_dtype", "")
    if buffers in _FULL:
        buffers = ""
    return _named(construction, source, code, needs_name=bool(code.loop)), buffers


def _made_from(
    construction: Construction, value: ast.expr, code: Code, may_be_none: bool
) -> tuple[str, str]:
    """FSDP2's policy from an object of FSDP1's that only the run knows."""
    context = construction.context
    call = construction.call
    given = construction.text(value)
    if not all(part.isidentifier() for part in given.split(".")):
        name = context.local("mixed_precision", call)
        code.above.append(f"{name} = {given}")
        given = name
    policy = context.local("mp_policy", call)
    made = (
        f"MixedPrecisionPolicy(param_dtype={given}.param_dtype, "
        f"reduce_dtype={given}.reduce_dtype or {given}.param_dtype)"
    )
    if may_be_none:
        code.above += [
            f"{policy} = MixedPrecisionPolicy()",
            f"if {given} is not None:",
            f"    {policy} = {made}",
        ]
        return policy, f"{given} and {given}.buffer_dtype"
    code.above.append(f"{policy} = {made}")
    return policy, f"{given}.buffer_dtype"


def _can_have_batch_norms(construction: Construction) -> bool:
    """Whether this file speaks of BatchNorm, or one that defines the model's class, or is imported there."""
    context = construction.context
    module = construction.module
    if module is None:
        return False
    program = context.program
    paths = {str(context.file.path)} | {
        path
        for end in construction.flow(module).ends
        if isinstance(end.node, ast.Call)
        for cls in defined(program, end.file, end.node)
        for path in program.reach.below(str(cls.file.path))
    }
    return not program.tree.having(_NORMS).isdisjoint(paths)
