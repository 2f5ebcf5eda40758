"""Forwards that take another way on every rank: `if rank == 0`, layer drop, experts without tokens."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.classes import forwards, in_class, model_classes, own_plans
from fsdp_migrate.codemods.surroundings.parameters import Parameters

RULE = Rule(
    "FSDP518",
    "rank-dependent-forward",
    "ranks that use different parameters of a unit make FSDP2 fail or hang",
    """FSDP1 reduced the gradient of a whole unit, with zeros for what a rank had not used: ranks could use different
parameters of it. FSDP2 reduces the parameters that have gradients, so that the ranks send different sizes: it fails or
hangs in the first backward in which they differ (measured with torch 2.13 on two ranks with gloo; pytorch#158719,
pytorch#170667). Whether whole units run must not differ in either version: their all-gathers would not meet.

From torch 2.13 on `model.set_reduce_scatter_unused_params(True)` makes FSDP2 reduce zeros as FSDP1 did. It also gives zeros
to units that no rank used, which had no gradients under FSDP1: with weight decay or momentum, training changes for those.
Or use every parameter on every rank: `x = x + 0.0 * expert(x).sum()`.

The finding stands where `forward` of a class that a sharded model is made of decides by the rank, by a random number, or by
the values of its tensors, whether a submodule runs.""",
    (
        Example(
            "layer drop",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def forward(self, x):
        if torch.rand(1) > 0.1:
            x = self.block(x)
        return x


model = FSDP(Net())
""",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def forward(self, x):
        # fsdp-migrate: FSDP518 by hand: hangs if ranks decide differently: set_reduce_scatter_unused_params (torch 2.13)
        if torch.rand(1) > 0.1:
            x = self.block(x)
        return x


model = fully_shard(Net())
""",
            message="set_reduce_scatter_unused_params",
        ),
        Example(
            "experts that no token of a rank goes to",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Experts(nn.Module):
    def forward(self, x, choice):
        for index, expert in enumerate(self.experts):
            chosen = torch.where(choice == index)[0]
            if chosen.numel() == 0:
                continue
            x[chosen] = expert(x[chosen])
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()


model = FSDP(Net())
""",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Experts(nn.Module):
    def forward(self, x, choice):
        for index, expert in enumerate(self.experts):
            chosen = torch.where(choice == index)[0]
            # fsdp-migrate: FSDP518 by hand: hangs if ranks decide differently: set_reduce_scatter_unused_params (torch 2.13)
            if chosen.numel() == 0:
                continue
            x[chosen] = expert(x[chosen])
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()


model = fully_shard(Net())
""",
            message="set_reduce_scatter_unused_params",
        ),
        Example(
            "decisions that are the same on all ranks, and a class of another model",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def forward(self, x, mask=None):
        if mask is not None and self.training:
            x = self.masked(x)
        if x.numel() > 1:
            x = x / 2
        return self.head(x)


class Critic(nn.Module):
    def forward(self, x):
        return self.head(x) if torch.rand(1) > 0.1 else x


model = FSDP(Net())
""",
            """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def forward(self, x, mask=None):
        if mask is not None and self.training:
            x = self.masked(x)
        if x.numel() > 1:
            x = x / 2
        return self.head(x)


class Critic(nn.Module):
    def forward(self, x):
        return self.head(x) if torch.rand(1) > 0.1 else x


model = fully_shard(Net())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "hangs if ranks decide differently: set_reduce_scatter_unused_params (torch 2.13)"
# What a rank has for itself: its number, its random numbers, and the values of its tensors.
_OWN_FUNCTIONS = frozenset({"get_rank", "rand", "randint", "random", "uniform", "randn"})
_OWN_METHODS = frozenset({"any", "all", "item", "numel", "nelement", "tolist"})


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Tests of what differs between ranks, in the classes that an FSDP1 model is made of."""
    said: set[ast.AST] = set()
    for plan in own_plans(context):
        for module, cls, forward in forwards(model_classes(context, plan)):
            for node in _decisions(forward):
                if node in said:
                    continue
                said.add(node)
                inside = f"{cls.name}.forward"
                yield in_class(RULE, context, plan, module, node, _MESSAGE, inside)


def _decisions(forward: ast.FunctionDef) -> Iterator[ast.If]:
    """The `if`s whose test may differ between ranks and behind which a submodule runs, or is passed by."""
    own = {
        target.id
        for node in ast.walk(forward)
        if isinstance(node, ast.Assign) and _is_own(node.value, set(), random_only=True)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    parts = _parts(forward)
    for node in ast.walk(forward):
        if not isinstance(node, ast.If) or not _is_own(node.test, own):
            continue
        behind: list[ast.stmt] = [*node.body, *node.orelse]
        if any(isinstance(statement, ast.Continue) for statement in node.body):
            loops = [n for n in ast.walk(forward) if isinstance(n, ast.For) and node in n.body]
            behind += [s for loop in loops for s in loop.body[loop.body.index(node) + 1 :]]
        if any(_runs_part(statement, parts) for statement in behind):
            yield node


def _is_own(expression: ast.expr, names: set[str], *, random_only: bool = False) -> bool:
    """Whether a value may differ between ranks."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and (node.id in names or node.id == "rank"):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "rank":
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            if name in _OWN_FUNCTIONS:
                return not _has_shape(node)
            if name in _OWN_METHODS and not random_only:
                return True
    return False


def _has_shape(call: ast.Call) -> bool:
    """Whether random numbers fill a tensor: noise, and no decision."""
    return len(call.args) > 1 and getattr(call.func, "attr", "") in {"rand", "randn"}


def _parts(forward: ast.FunctionDef) -> set[str]:
    """The names of loops over `self.layers`: each of them a submodule."""
    return {
        name.id
        for loop in ast.walk(forward)
        if isinstance(loop, ast.For) and any(_is_self(n) for n in ast.walk(loop.iter))
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }


def _is_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _runs_part(statement: ast.stmt, parts: set[str]) -> bool:
    """Whether a statement calls a submodule: `self.block(x)`, `self.layers[0](x)`, `layer(x)` of a loop."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in parts:
            return True
        while isinstance(function, ast.Subscript):
            function = function.value
        if _is_self(function):
            return True
    return False
