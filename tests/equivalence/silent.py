"""What goes on without an error, and does something else, where FSDP1 is left behind on an FSDP2 model.

Each row is a small program. It is run as it is, with one construct left behind on a model of ``fully_shard``, on the
bridge, and in place. What is left behind runs and gives another result. The other two give FSDP1's, unless the program
looks at parameters as tensors, which a rule must say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_migrate.runtime.torch_private import parameter_groups, units_of

from .checks import CHECKS, check
from .swapped import swap
from .train import averaging, fsdp1_on_cpu, full_fsdp1, full_fsdp2

_FORWARD = "        x = (self.second if second else self.first)(x)\n"
_HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x, second=False):
        x = (self.second if second else self.first)(x)
        return self.head(torch.relu(x))


def step(model, optimizer, **options):
    torch.manual_seed(dist.get_rank())
    loss = model(torch.randn(4, 6), **options).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def run():
    torch.manual_seed(0)
    model = Net()
"""
SHARDED = ("model = FSDP(model", "fully_shard(model")


@dataclass(frozen=True)
class Row:
    """One construct.

    Attributes:
        body: the statements of a function that build a model and give a result.
        left: what an incomplete rewrite makes of parts of the program; the construct stays.
        rule: what says that parameters are looked at as tensors, so that the bridge's result is another.
        left_hangs: what is left behind is not run.
        head: other imports.
    """

    name: str
    body: str
    left: tuple[tuple[str, str], ...] = (SHARDED,)
    rule: str = ""
    left_hangs: bool = False
    head: str = ""
    forward: str = _FORWARD

    @property
    def source(self) -> str:
        lines = "".join(f"    {line}\n" for line in self.body.splitlines())
        return f"{self.head}{_HEAD.replace(_FORWARD, self.forward)}{lines}"

    @property
    def residue(self) -> str:
        """The program with the construct left behind on an FSDP2 model."""
        text = self.source
        for old, new in self.left:
            assert old in text, old
            text = text.replace(old, new)
        return f"from torch.distributed.fsdp import fully_shard\n{text}"


_TRAINED = "return [step(model, optimizer) for _ in range(3)], whole(model)"
_SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
_ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)\n"
_FLAG = "model.set_requires_gradient_sync(False)\n    if True:"
_ZEROED = "optimizer.zero_grad()\nreturn "

ROWS = (
    Row(
        "offload-policy",
        "model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))\nreturn offloads(model)",
        (SHARDED, ("cpu_offload=", "offload_policy=")),
        head="from torch.distributed.fsdp import CPUOffload\n",
    ),
    Row(
        "summon-full-params",
        "model = FSDP(model)\nwith FSDP.summon_full_params(model, writeback=False):\n"
        "    return [p.detach().clone() for p in model.parameters()]",
    ),
    Row(
        "set-state-dict-type",
        "model = FSDP(model)\nFSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n"
        "return model.state_dict()",
        head="from torch.distributed.fsdp import StateDictType\n",
    ),
    Row("state-dict", "model = FSDP(model)\nreturn model.state_dict()"),
    Row("fsdp-modules", "model = FSDP(model)\nreturn len(FSDP.fsdp_modules(model))"),
    Row("isinstance", "model = FSDP(model)\nreturn isinstance(model, FSDP)"),
    Row(
        "hasattr-of-the-wrapped",
        'model = FSDP(model)\nreturn hasattr(model, "_fsdp_wrapped_module")',
    ),
    Row("hasattr", 'model = FSDP(model)\nreturn hasattr(model, "no_sync")'),
    Row(
        "hasattr-of-an-attribute",
        'model = FSDP(model)\nreturn hasattr(model, "sharding_strategy")',
    ),
    Row(
        "optimizer-first",
        f"{_SGD}model = FSDP(model, use_orig_params=True)\n{_TRAINED}",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
    ),
    Row(
        "no-broadcast",
        "torch.manual_seed(dist.get_rank())\nmodel = Net()\n"
        f"model = FSDP(model, sync_module_states=True)\n{_SGD}{_TRAINED}",
        (("model = FSDP(model, sync_module_states=True)", "fully_shard(model)"),),
    ),
    Row(
        "synchronization-left-off",
        f"model = FSDP(model)\n{_SGD}with model.no_sync():\n"
        f"    model(torch.ones(2, 6)).sum().backward()\n{_TRAINED}",
        (SHARDED, ("with model.no_sync():", _FLAG)),
    ),
    Row(
        "count-of-parameters",
        "model = FSDP(model, use_orig_params=True)\n"
        "count = torch.tensor(sum(p.numel() for p in model.parameters()))\n"
        "dist.all_reduce(count)\nreturn count",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
        rule="FSDP507",
    ),
    Row(
        "groups-by-shape",
        "model = FSDP(model, use_orig_params=True)\n"
        "optimizer = torch.optim.AdamW(\n"
        '    [{"params": [p], "weight_decay": 0.5 * (p.ndim >= 2)} for p in model.parameters()], lr=0.1\n'
        f")\n{_TRAINED}",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
        rule="FSDP507",
    ),
    Row(
        "norm-by-hand",
        f"model = FSDP(model, use_orig_params=True)\n{_SGD}"
        "model(torch.ones(2, 6)).sum().backward()\n"
        "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
        "norm = torch.norm(torch.stack([torch.norm(g) for g in grads])).item()\n"
        "total = torch.tensor(norm**2)\n"
        "dist.all_reduce(total)\n"
        "return total.sqrt().round(decimals=4)",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
        # In torch 2.8 .item() of a norm is this rank's part of it, as under FSDP1; in 2.11 it is the whole.
        rule="" if torch.__version__.startswith("2.8.") else "FSDP507",
    ),
    Row(
        "hook-on-a-flat-parameter",
        f"model = FSDP(model)\nfor p in model.parameters():\n"
        f"    p.register_hook(lambda gradient: gradient * 0.25)\n{_SGD}{_TRAINED}",
        rule="FSDP506",
    ),
    Row(
        "optimizer-in-backward",
        "model = FSDP(model, use_orig_params=True)\n"
        '_apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})\n'
        "return [model(torch.ones(2, 6)).sum().backward() for _ in range(2)], whole(model)",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
        head="from torch.distributed.optim import _apply_optimizer_in_backward\n",
    ),
    Row(
        "evaluated-first",
        f"model = FSDP(model)\nwith torch.no_grad():\n    model(torch.ones(2, 6))\n{_SGD}{_TRAINED}",
    ),
    Row(
        "evaluated-first-without-resharding",
        "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        f"with torch.no_grad():\n    model(torch.ones(2, 6))\n{_SGD}{_TRAINED}",
        (
            (
                "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
                "fully_shard(model, reshard_after_forward=False)",
            ),
        ),
        head="from torch.distributed.fsdp import ShardingStrategy\n",
    ),
    Row(
        "unsynchronized-gradients-left-over",
        f"model = FSDP(model)\n{_SGD}with model.no_sync():\n"
        "    model(torch.ones(2, 6)).sum().backward()\n"
        f"{_ZEROED}{_TRAINED.removeprefix('return ')}",
        (SHARDED, ("with model.no_sync():", _FLAG)),
    ),
    Row(
        "unused-parameters-under-weight-decay",
        "if dist.is_initialized():\n    model = FSDP(model, use_orig_params=True)\n"
        "else:\n    model = DDP(model, find_unused_parameters=True)\n"
        f"{_ADAMW}{_TRAINED}",
        (("model = FSDP(model, use_orig_params=True)", "fully_shard(model)"),),
        head="from torch.nn.parallel import DistributedDataParallel as DDP\n",
    ),
    Row(
        "usage-that-differs-between-ranks",
        f"model = FSDP(model)\n{_SGD}"
        "return [step(model, optimizer) for _ in range(3)], whole(model)",
        left_hangs=True,
        forward="        if dist.get_rank() == 1:\n"
        "            x = self.second(x)\n"
        "        else:\n"
        "            x = self.first(x)\n",
    ),
)


def offloads(model: nn.Module) -> bool:
    """Whether the shards of a model are on the CPU between forwards, and the gathered parameters where they are not."""
    if not isinstance(model, FSDPModule):
        return bool(model.cpu_offload.offload_params)
    return all(
        p.offload_to_cpu
        for unit in units_of(model)
        for g in parameter_groups(unit)
        for p in g.fsdp_params
    )


def execute(text: str, whole: Callable[[nn.Module], Any]) -> Any:
    """The result of a program's `run`, with plain tensors of this rank in place of DTensors."""
    names: dict[str, Any] = {
        "averaging": averaging,
        "offloads": offloads,
        "whole": lambda model: whole(model)[0],
    }
    with fsdp1_on_cpu():
        exec(compile(text, "program", "exec"), names)
        result = names["run"]()
    names.clear()
    return plain(result)


def plain(result: Any) -> Any:
    if isinstance(result, DTensor):
        return result.to_local().detach().clone()
    if isinstance(result, dict):
        return {name: plain(value) for name, value in result.items()}
    return [plain(value) for value in result] if isinstance(result, list | tuple) else result


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def check_row(row: Row) -> None:
    from in_place import constructing_in_place  # found where ranks run, in tests/

    expected = execute(row.source, full_fsdp1)
    if not row.left_hangs:
        assert not same(expected, execute(row.residue, full_fsdp2)), "what is left behind is right"
    for form in (contextlib.nullcontext, constructing_in_place):
        with form():
            try:
                found = execute(swap(row.source), full_fsdp2)
            except Exception:
                assert row.rule
                raise
        assert same(expected, found) is not bool(row.rule), form.__name__


CLIPPED = Row(
    "torch-clips-the-norm",
    f"model = FSDP(model)\n{_SGD}"
    "torch.manual_seed(dist.get_rank())\n"
    "model(torch.randn(2, 6)).sum().backward()\n"
    "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
    # torch 2.8 returns this rank's part of a DTensor's norm, and clips by the whole one
    'return norm.full_tensor() if hasattr(norm, "full_tensor") else norm',
    (("model = FSDP(model)", "averaging(fully_shard(model))"),),
)


@check(2)
def left_behind_torch_clips_by_the_whole_norm() -> None:
    """Under FSDP1 the same line clipped by the norm of a rank's shards: nothing that anybody could want back."""
    theirs, residue = execute(CLIPPED.source, full_fsdp1), execute(CLIPPED.residue, full_fsdp2)
    ours = execute(swap(CLIPPED.source), full_fsdp2)
    assert torch.allclose(residue, ours)
    whole = theirs.square()
    dist.all_reduce(whole)
    assert torch.allclose(whole.sqrt(), ours)
    assert theirs < ours


for _row in ROWS:
    CHECKS[f"left-behind-{_row.name}"] = ((2,), lambda row=_row: check_row(row))
