"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit. And FSDP1, given a policy for wrapping,
keeps every BatchNorm in full precision.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.plain import Plain, Said, Stays, is_given, is_pure, spent
from fsdp_migrate.codemods.edit import text
from fsdp_migrate.codemods.rule import Edit, Edits, Example, Import, Rule, bridged
from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.findings import Action

POLICY = Rule(
    "FSDP213",
    "mixed-precision",
    "MixedPrecision is MixedPrecisionPolicy, and inputs are cast at the root only",
    """`param_dtype` and `reduce_dtype` carry over. FSDP1's defaults cast the inputs of the root (`cast_root_forward_inputs`)
and not those of the units below it (`cast_forward_inputs`). FSDP2's default casts everywhere, which turns, say, a mask or a
table of positions in full precision into bfloat16 inside every block. The units below the root therefore get
`cast_forward_inputs=False`.""",
    (
        Example(
            "one unit",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net

model = Net()
model = FSDP(
    model,
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
""",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from model import Net

model = Net()
fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
)
""",
        ),
        Example(
            "units below the root, in a model of this program without BatchNorm",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, x):
        return self.layers(x)


def build():
    model = Net()
    bf16 = MixedPrecision(param_dtype=torch.bfloat16)
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), mixed_precision=bf16)
    return model
""",
            """\
from dataclasses import replace

import torch
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, x):
        return self.layers(x)


def build():
    model = Net()
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.Linear):
            fully_shard(module, mp_policy=replace(bf16, cast_forward_inputs=False))
    fully_shard(model, mp_policy=bf16)
    return model
""",
        ),
        bridged(
            "chosen when the program runs",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net

precision = None
if torch.cuda.is_bf16_supported():
    precision = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(Net(), mixed_precision=precision)
""",
        ),
    ),
)
BUFFERS = Rule(
    "FSDP214",
    "buffer-dtype",
    "buffer_dtype casts buffers, which FSDP2 does not",
    """FSDP1 casts all floating-point buffers to `buffer_dtype` before the first forward. FSDP2 leaves buffers alone.
Dropping the argument changes the numbers of every model with, say, rotary tables. The runtime casts them.""",
    (
        Example(
            "a model whose class is not part of the program",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net

bf16 = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
model = FSDP(Net(), mixed_precision=bf16)
""",
            """\
import torch
from fsdp_migrate.runtime import cast_buffers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from model import Net

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
model = Net()
cast_buffers(model, torch.bfloat16)
fully_shard(model, mp_policy=bf16)
""",
            message="the runtime casts",
        ),
    ),
)
LOW_PRECISION_GRADS = Rule(
    "FSDP216",
    "keep-low-precision-grads",
    "keep_low_precision_grads has no counterpart",
    """FSDP2's gradients have the type of the sharded parameters. An optimizer that wants gradients in low precision has to
cast them itself before its step. The runtime raises ValueError.""",
    (
        bridged(
            "gradients kept in low precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net

model = FSDP(
    Net(), mixed_precision=MixedPrecision(torch.bfloat16, keep_low_precision_grads=True)
)
""",
            message="keep_low_precision_grads",
        ),
    ),
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
_WHEN_RUN = "mixed_precision is known when the program runs"


@dataclass(frozen=True)
class _Policy:
    """The fields of a `MixedPrecision(...)` that are given, as expressions."""

    call: ast.Call
    fields: dict[str, ast.expr]

    def flag(self, name: str, default: bool) -> bool | None:
        """The value of a flag; None if it is no literal."""
        value = self.fields.get(name, ast.Constant(default))
        known = isinstance(value, ast.Constant) and isinstance(value.value, bool)
        return value.value if known else None  # type: ignore[attr-defined]

    def dtypes(self, *names: str) -> dict[str, ast.expr]:
        """The types among some fields that are not None."""
        given = {name: self.fields[name] for name in names if name in self.fields}
        return {
            name: value
            for name, value in given.items()
            if not (isinstance(value, ast.Constant) and value.value is None)
        }


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with a MixedPrecision."""
    if construction.is_none(argument.value):
        return POLICY, Said("None: full precision, the default")
    policy = _policy(construction, argument.value)
    if policy is None:
        return POLICY, Said("the runtime reads it when the program runs")
    if policy.flag("keep_low_precision_grads", False) is not False:
        message = (
            "keep_low_precision_grads has no counterpart, and the runtime raises ValueError: "
            "cast the gradients before optimizer.step()"
        )
        return LOW_PRECISION_GRADS, Said(message, Action.MANUAL)
    if policy.dtypes("buffer_dtype"):
        return BUFFERS, Said("a MixedPrecisionPolicy; the runtime casts buffers to buffer_dtype")
    return POLICY, Said("a MixedPrecisionPolicy: inputs are cast at the root only, as by FSDP1")


def plain(construction: Construction) -> dict[str, Plain]:
    """What mixed precision is in plain PyTorch.

    Raises:
        Stays: if it needs the runtime, or is known only when the program runs.
    """
    value = construction.value("mixed_precision")
    if value is None:
        return {"mixed_precision": Plain("None: full precision, the default")}
    context = construction.context
    made = context.value(value)
    policy = _policy(construction, value)
    statements = spent(context, made) if made is not None else None
    if made is None or policy is None or statements is None or not is_pure(context, policy.call):
        raise Stays(_WHEN_RUN)
    below, root = (
        policy.flag("cast_forward_inputs", False),
        policy.flag("cast_root_forward_inputs", True),
    )
    if below is None or root is None or "_module_classes_to_ignore" in policy.fields:
        raise Stays(_WHEN_RUN)
    if policy.flag("keep_low_precision_grads", False) is not False:
        raise Stays("mixed_precision: keep_low_precision_grads has no counterpart")
    # FSDP1 casts at the root for either flag (`_runtime_utils.py`, `_root_pre_forward` and `_pre_forward`).
    return {"mixed_precision": _plain(construction, policy, statements, below, root or below)}


def without_buffers(part: Plain) -> Plain:
    """The plain form for a model that has no buffers to cast."""
    return replace(
        part,
        above=tuple(line for line in part.above if not line.startswith("cast_buffers")),
        imports=tuple(need for need in part.imports if need.name != "cast_buffers"),
    )


def _policy(construction: Construction, value: ast.expr) -> _Policy | None:
    """The `MixedPrecision(...)` behind an argument, in this file."""
    context = construction.context
    made = context.value(value)
    call = made.node if made is not None and made.file is context.file else None
    if not isinstance(call, ast.Call) or context.fsdp1(call.func) != "MixedPrecision":
        return None
    names = [*_FIELDS[: len(call.args)], *(keyword.arg for keyword in call.keywords)]
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    known = len({*names} & {*_FIELDS}) == len(values)
    if not known or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return _Policy(call, dict(zip(names, values, strict=True)))  # type: ignore[arg-type]


def _plain(
    construction: Construction,
    policy: _Policy,
    statements: tuple[ast.stmt, ...],
    below: bool,
    root: bool,
) -> Plain:
    context = construction.context
    at = policy.call.func
    dtypes = policy.dtypes("param_dtype", "reduce_dtype")
    given = {name: context.source(value) for name, value in dtypes.items()}
    if not root:
        given["cast_forward_inputs"] = "False"
    code = f"MixedPrecisionPolicy({', '.join(f'{name}={text}' for name, text in given.items())})"
    need = Import(TORCH, "MixedPrecisionPolicy", at)
    buffers = policy.dtypes("buffer_dtype")
    above: tuple[str, ...] = ()
    imports: tuple[Import, ...] = (need,)
    if buffers:
        above = (f"cast_buffers({{model}}, {context.source(buffers['buffer_dtype'])})",)
        imports = (*imports, Import(RUNTIME, "cast_buffers", at))
    message = "MixedPrecisionPolicy; inputs are cast at the root only, as by FSDP1"
    if buffers:
        message += "; the runtime casts buffers"
    if not dtypes:
        return Plain(
            "no types: nothing is cast",
            above=above,
            imports=imports[1:],
            removed=(policy.call,),
            statements=statements,
        )
    if not is_given(construction, "auto_wrap_policy") or below == root:
        if not statements:
            shared = {"mp_policy": code}
            return Plain(
                message, shared=shared, above=above, imports=imports, removed=(policy.call,)
            )
    name, edits = _named(construction, policy, statements)
    if not statements:
        above = (*above, f"{name} = {code}")
    child = name
    if is_given(construction, "auto_wrap_policy") and below != root:
        child = f"replace({name}, cast_forward_inputs={below})"
        imports = (*imports, Import("dataclasses", "replace"))
    return Plain(
        message,
        child={"mp_policy": child},
        root={"mp_policy": name},
        above=above,
        imports=imports,
        edits=edits,
        removed=(policy.call,),
    )


def _named(
    construction: Construction, policy: _Policy, statements: tuple[ast.stmt, ...]
) -> tuple[str, tuple[Edits, ...]]:
    """The name that the policy has at the constructor, and the edit of the assignment that gives it one."""
    context = construction.context
    if not statements:
        return context.free("mp_policy", construction.call), ()
    if len(statements) > 1:
        raise Stays("mixed_precision has several names")
    value = construction.value("mixed_precision")
    assert isinstance(value, ast.Name)
    return value.id, (lambda: _renamed(construction, policy, statements[0]),)


def _renamed(construction: Construction, policy: _Policy, statement: ast.stmt) -> list[Edit]:
    """`bf16 = MixedPrecision(...)` becomes `bf16 = MixedPrecisionPolicy(...)` in the same layout, comments kept."""
    context, file, call = construction.context, construction.context.file, policy.call
    new = {name: name for name in policy.dtypes("param_dtype", "reduce_dtype")}
    if not (
        policy.flag("cast_forward_inputs", False) or policy.flag("cast_root_forward_inputs", True)
    ):
        new["cast_root_forward_inputs"] = "cast_forward_inputs"
    spans = [file.span(each) for each in (*call.args, *call.keywords)]
    edits = [context.replace(call.func, "MixedPrecisionPolicy")]
    for (start, _), (name, value) in zip(spans, policy.fields.items(), strict=True):
        here = file.span(value)[0]
        if name in new and (start == here or new[name] != name):
            edits.append(Edit(start, here, f"{new[name]}="))
    dropped = [index for index, name in enumerate(policy.fields) if name not in new]
    drops = text.drop_items(file.text, spans, dropped)
    indent, end_of_line = text.indentation(file, statement), text.newline(file)
    comments = [
        each for drop in drops for each in text.comments_between(file, drop.start, drop.end)
    ]
    lost = "".join(f"{indent}{comment}{end_of_line}" for comment in comments)
    above, _ = file.lines(statement)
    return [*([Edit(above, above, lost)] if lost else []), *edits, *drops]
