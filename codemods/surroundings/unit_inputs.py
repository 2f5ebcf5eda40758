"""In-place operations on the inputs of a unit: `x += y` in the `forward` of a block."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.classes import forwards, in_class, own_plans, unit_classes
from fsdp_migrate.codemods.surroundings.parameters import Parameters

RULE = Rule(
    "FSDP515",
    "inplace-on-input",
    "a unit's forward must not change its inputs in place",
    """FSDP2 passes the inputs of a unit that require gradients through a function of its own, to know when the unit's
backward is done. What comes out is a view, and to change it in place raises `Output 0 of RegisterPostBackwardFunction is a
view and is being modified inplace` in the first training forward (`_fsdp_param_group.py`, torch 2.13; pytorch#181832).
FSDP1 had no such function. Write `x = x + y`, or change `x.clone()`. Outputs of units can be changed in place in both
versions, unless they are views themselves. The inputs of the whole model hardly ever require gradients, and are no finding.""",
    (
        Example(
            "a residual that is added in place",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x, shift):
        x += shift
        return self.mlp(x)


model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def forward(self, x, shift):
        # fsdp-migrate: FSDP515 by hand: fails: FSDP2 gives a unit views of its inputs; write x = x + ..., or clone
        x += shift
        return self.mlp(x)


for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
            message="views of its inputs",
        ),
        Example(
            "a new tensor, and a class that is no unit",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x, step):
        x = self.norm(x)
        x += 1
        step += 1
        return self.mlp(x)


class Head(nn.Module):
    def forward(self, x):
        x += 1
        return x


model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def forward(self, x, step):
        x = self.norm(x)
        x += 1
        step += 1
        return self.mlp(x)


class Head(nn.Module):
    def forward(self, x):
        x += 1
        return x


for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "fails: FSDP2 gives a unit views of its inputs; write x = x + ..., or clone"
# Methods that end in an underscore and change no numbers.
_HARMLESS = frozenset({"requires_grad_", "share_memory_", "retain_grad_", "detach_"})


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """In-place operations on inputs, in the classes that a policy makes units of."""
    said: set[ast.AST] = set()
    for plan in own_plans(context):
        for module, cls, forward in forwards(unit_classes(context, plan)[0]):
            for node in _changed(forward):
                if node in said:
                    continue
                said.add(node)
                inside = f"{cls.name}.forward"
                yield in_class(RULE, context, plan, module, node, _MESSAGE, inside)


def _changed(forward: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The statements that change an input before its name means something else."""
    names = [argument.arg for argument in [*forward.args.posonlyargs, *forward.args.args][1:]]
    rebound = {
        name: min(
            (
                node.lineno
                for node in ast.walk(forward)
                if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)
                and node.id == name
                and not _is_augmented(forward, node)
            ),
            default=10**9,
        )
        for name in names
    }
    for node in ast.walk(forward):
        if not isinstance(node, ast.AugAssign | ast.Assign | ast.Expr):
            continue
        name = _changes(node, names[:1])
        if name and node.lineno < rebound[name]:
            yield node


def _is_augmented(forward: ast.FunctionDef, name: ast.Name) -> bool:
    return any(
        isinstance(node, ast.AugAssign) and node.target is name for node in ast.walk(forward)
    )


def _changes(statement: ast.AugAssign | ast.Assign | ast.Expr, tensors: list[str]) -> str:
    """The input that a statement changes; empty if none. The first input is a tensor: others may be numbers."""
    if isinstance(statement, ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return ""
        method, target = call.func.attr, call.func.value
        if not method.endswith("_") or method.endswith("__") or method in _HARMLESS:
            return ""
    else:
        target = statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]
        if isinstance(statement, ast.Assign) and not isinstance(target, ast.Subscript):
            return ""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) and target.id in tensors else ""
