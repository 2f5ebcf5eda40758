"""`mixed_precision`: the types that parameters, gradients, inputs and buffers are cast to.

`MixedPrecision(param_dtype, reduce_dtype)` is `MixedPrecisionPolicy(param_dtype, reduce_dtype)`, with two differences that
guides miss. FSDP1 casts the inputs of the root only, FSDP2 those of every unit: the units below the root get
`cast_forward_inputs=False`. And FSDP1, given a policy for wrapping, keeps every BatchNorm in full precision: the plain form is
written only for models that are seen to have none.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

import libcst as cst

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.plan import Plain, Translation, is_pure
from fsdp_migrate.codemods.rule import Edit, Example, Rule
from fsdp_migrate.index.module import Assigned
from fsdp_migrate.index.names import PACKAGE

POLICY = Rule(
    "FSDP213",
    "mixed-precision",
    "MixedPrecision is MixedPrecisionPolicy, and inputs are cast at the root only",
    """`param_dtype` and `reduce_dtype` carry over. FSDP1's defaults cast the inputs of the root (`cast_root_forward_inputs`)
and not those of the units below it (`cast_forward_inputs`); FSDP2's default casts everywhere, which turns, say, a mask or a
table of positions in full precision into bfloat16 inside every block. The units below the root therefore get
`cast_forward_inputs=False`.""",
    (
        Example(
            "one unit",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(
    model,
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
""",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
)
""",
        ),
        Example(
            "units below the root, in a model that is seen to have no BatchNorm",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


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
        Example(
            "no type at all, or None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

encoder = FSDP(encoder, mixed_precision=MixedPrecision())
decoder = FSDP(decoder, mixed_precision=None)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(encoder)
fully_shard(decoder)
""",
        ),
        Example(
            "chosen when the program runs",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

precision = None
if torch.cuda.is_bf16_supported():
    precision = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(model, mixed_precision=precision)
""",
            """\
import torch
from fsdp_migrate.runtime import MixedPrecision, shard_model

precision = None
if torch.cuda.is_bf16_supported():
    precision = MixedPrecision(param_dtype=torch.bfloat16)
model = shard_model(model, mixed_precision=precision)
""",
        ),
        Example(
            "one of a table",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

PRECISIONS = {
    "bf16": MixedPrecision(param_dtype=torch.bfloat16),
    "fp32": None,
}
model = FSDP(model, mixed_precision=PRECISIONS[args.precision])
""",
            """\
import torch
from fsdp_migrate.runtime import MixedPrecision, shard_model

PRECISIONS = {
    "bf16": MixedPrecision(param_dtype=torch.bfloat16),
    "fp32": None,
}
model = shard_model(model, mixed_precision=PRECISIONS[args.precision])
""",
        ),
        Example(
            "inputs that are cast in every unit, or nowhere",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(
    model,
    mixed_precision=MixedPrecision(
        param_dtype=torch.float16, cast_root_forward_inputs=False
    ),
)
""",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.float16, cast_forward_inputs=False
    ),
)
""",
        ),
    ),
)
BUFFERS = Rule(
    "FSDP214",
    "buffer-dtype",
    "buffer_dtype casts buffers, which FSDP2 does not",
    """FSDP1 casts all floating-point buffers to `buffer_dtype` before the first forward. FSDP2 leaves buffers alone. Dropping
the argument changes the numbers of every model with, say, rotary tables, so the call goes to the runtime, which casts them;
a model that is seen to have no buffers needs nothing.""",
    (
        Example(
            "a model that cannot be seen",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
model = FSDP(model, mixed_precision=bf16)
""",
            """\
import torch
from fsdp_migrate.runtime import MixedPrecision, shard_model

bf16 = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
model = shard_model(model, mixed_precision=bf16)
""",
        ),
        Example(
            "a model that is seen to have none",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


model = Net()
model = FSDP(
    model,
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16),
)
""",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


model = Net()
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
            quiet=True,
        ),
    ),
)
BATCH_NORM = Rule(
    "FSDP215",
    "batchnorm-exempt",
    "FSDP1 keeps BatchNorm in full precision",
    """With both `auto_wrap_policy` and `mixed_precision`, FSDP1 wraps every BatchNorm by itself without mixed precision
(`MixedPrecision._module_classes_to_ignore`). Plain FSDP2 would run it in `param_dtype`, or fail. Unless the model is seen to
have no BatchNorm, the call goes to the runtime, which does as FSDP1 does.""",
    (
        Example(
            "a model that cannot be seen",
            """\
import torch
from model import Block
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
)
""",
            """\
import torch
from model import Block
from fsdp_migrate.runtime import MixedPrecision, ModuleWrapPolicy, shard_model

model = shard_model(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
)
""",
        ),
    ),
)
LOW_PRECISION_GRADS = Rule(
    "FSDP216",
    "keep-low-precision-grads",
    "keep_low_precision_grads has no counterpart",
    """FSDP2's gradients have the type of the sharded parameters. An optimizer that wants gradients in low precision has to
cast them itself before its step.""",
    (
        Example(
            "gradients kept in low precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(
    model, mixed_precision=MixedPrecision(torch.bfloat16, keep_low_precision_grads=True)
)
""",
            message="keep_low_precision_grads",
        ),
    ),
)
RULES = (POLICY, BUFFERS, BATCH_NORM, LOW_PRECISION_GRADS)

FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)


@dataclass(frozen=True, eq=False)
class _Policy:
    """A `MixedPrecision(...)` in sight.

    Attributes:
        call: the call, in the constructor's own file.
        name: the assignment that binds it, if any.
    """

    call: ast.Call
    name: Assigned | None

    def value(self, field: str) -> ast.expr | None:
        return given_for(self.call, field, FIELDS.index(field))

    @property
    def casts(self) -> bool:
        """Whether a type is given at all."""
        given = [self.value(field) for field in ("param_dtype", "reduce_dtype", "buffer_dtype")]
        return any(
            value is not None and not (isinstance(value, ast.Constant) and value.value is None)
            for value in given
        )

    def flag(self, field: str, default: bool) -> bool | None:
        value = self.value(field)
        if value is None:
            return default
        return (
            value.value
            if isinstance(value, ast.Constant) and isinstance(value.value, bool)
            else None
        )


def dtypes(constructor: Constructor) -> tuple[str | None, str | None]:
    """`param_dtype` and `reduce_dtype` as written; None for the parameters' own type, or if no policy is in sight."""
    value = constructor.value("mixed_precision")
    policy = None if value is None else _policy(constructor, value)
    if policy is None:
        return None, None
    given = [policy.value(field) for field in ("param_dtype", "reduce_dtype")]
    own, reduced = (
        None if v is None or (isinstance(v, ast.Constant) and v.value is None) else ast.unparse(v)
        for v in given
    )
    return own, reduced


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `mixed_precision`."""
    value = constructor.value("mixed_precision")
    if value is None:
        return None
    if constructor.is_none("mixed_precision"):
        return Translation(POLICY, "None: full precision, as by default", Plain(), in_runtime=False)
    policy = _policy(constructor, value)
    if policy is None:
        return Translation(POLICY, "the policy is known only when the program runs")
    if policy.flag("keep_low_precision_grads", False) is not False:
        message = "keep_low_precision_grads has no counterpart: cast the gradients before optimizer.step()"
        return Translation(LOW_PRECISION_GRADS, message, refused=True)
    inputs, root_inputs = (
        policy.flag("cast_forward_inputs", False),
        policy.flag("cast_root_forward_inputs", True),
    )
    if (
        inputs is None
        or root_inputs is None
        or policy.value("_module_classes_to_ignore") is not None
    ):
        return Translation(POLICY, "what is cast is known only when the program runs")
    if constructor.may_be_nested and policy.casts:
        message = (
            "another constructor may wrap this model: shard_model casts inputs at the root only"
        )
        return Translation(POLICY, message)
    if not constructor.is_none("auto_wrap_policy") and not constructor.makeup.no_batch_norm:
        message = "FSDP1 keeps BatchNorm in full precision; the model may have some, and shard_model exempts it"
        return Translation(BATCH_NORM, message)
    buffers = policy.value("buffer_dtype")
    cast = buffers is not None and not (isinstance(buffers, ast.Constant) and buffers.value is None)
    if cast and not constructor.makeup.no_buffers:
        return Translation(
            BUFFERS,
            "FSDP2 does not cast buffers; the model may have some, and shard_model casts them",
        )
    # FSDP1 casts at the root for either flag (`_runtime_utils.py`, `_root_pre_forward` and `_pre_forward`).
    plain = _plain(constructor, policy, inputs=inputs, root_inputs=root_inputs or inputs)
    return (
        replace(plain, message=f"{plain.message}; the model has no buffers to cast")
        if cast
        else plain
    )


def _policy(constructor: Constructor, value: ast.expr) -> _Policy | None:
    """The `MixedPrecision(...)` behind an argument: in place, or bound to a name that has no other use."""
    made = constructor.origin(value)
    if made is None or made.module is not constructor.context.module or len(made.names) > 1:
        return None
    call = made.node
    if not isinstance(call, ast.Call) or constructor.context.fsdp1(call.func) != "MixedPrecision":
        return None
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg not in FIELDS for k in call.keywords
    ):
        return None
    if not is_pure(constructor.context, call):
        return None
    if made.names and not constructor.context.is_only_use(made.names[0]):
        return None
    return _Policy(call, made.names[0] if made.names else None)


def _plain(
    constructor: Constructor, policy: _Policy, *, inputs: bool, root_inputs: bool
) -> Translation:
    context = constructor.context
    name, needs = context.name(PACKAGE, "MixedPrecisionPolicy", policy.call.func)
    dtypes = {
        field: value
        for field in ("param_dtype", "reduce_dtype")
        if (value := policy.value(field)) is not None
        and not (isinstance(value, ast.Constant) and value.value is None)
    }
    message = (
        "MixedPrecision is MixedPrecisionPolicy; inputs are cast at the root only, as FSDP1 does"
    )
    if not dtypes:  # nothing is cast at all
        alone = policy.name and context.stands_alone(context.module.statement(policy.name.target))
        spent = (policy.name,) if policy.name and alone else ()
        return Translation(
            POLICY,
            "no type is given: full precision",
            Plain(spent=spent, gone=(policy.call,) if spent or not policy.name else ()),
            in_runtime=False,
        )
    has_units = not constructor.is_none("auto_wrap_policy")
    source = ", ".join(f"{field}={context.source(value)}" for field, value in dtypes.items())
    root = source if root_inputs else f"{source}, cast_forward_inputs=False"
    gone: tuple[ast.AST, ...] = (policy.call.func,)
    edits: tuple[Edit, ...] = ()
    setup: tuple[str, ...] = ()
    if policy.name is not None:
        assert isinstance(policy.name.target, ast.Name)
        bound = policy.name.target.id
        edits = (_rename(constructor, policy, name, root_inputs),)
    elif has_units and inputs != root_inputs:
        bound = context.free("mp_policy", constructor.call)
        setup = (f"{bound} = {name}({root})",)
    else:
        call = f"{name}({root})"
        return Translation(
            POLICY, message, Plain(shared={"mp_policy": call}, needs=needs, gone=gone)
        )
    child = bound
    if has_units and inputs != root_inputs:
        replace_, more = context.name("dataclasses", "replace", use=constructor.call)
        child = f"{replace_}({bound}, cast_forward_inputs={inputs})"
        needs = (*needs, *more)
    return Translation(
        POLICY,
        message,
        Plain(
            child={"mp_policy": child},
            root={"mp_policy": bound},
            setup=setup,
            needs=needs,
            edits=edits,
            gone=gone,
        ),
    )


def _rename(constructor: Constructor, policy: _Policy, name: str, root_inputs: bool) -> Edit:
    """`MixedPrecision(...)` bound to a name becomes `MixedPrecisionPolicy(...)` where it stands."""
    positions = {
        FIELDS[index] if keyword is None else keyword: index
        for index, keyword in enumerate(
            [*(None for _ in policy.call.args), *(k.arg for k in policy.call.keywords)]
        )
    }
    kept = ("param_dtype", "reduce_dtype")
    edits = ArgumentEdits(
        drop=frozenset(index for field, index in positions.items() if field not in kept),
        rename={index: field for field, index in positions.items() if field in kept},
        add=() if root_inputs else (("cast_forward_inputs", cst.Name("False")),),
    )
    return constructor.context.edit_call(policy.call, edits, name)
