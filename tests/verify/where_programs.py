"""Small programs that train otherwise after their migration, a few of each kind, each with the line at which they differ.

The line ends with ``# HERE``. All of them are one program with other statements in some places.
"""

from dataclasses import dataclass

PROGRAM = """\
import fnmatch, itertools, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return x + torch.tanh(self.a(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blocks, self.head = nn.Linear(8, 8), nn.Sequential(Block(), Block()), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.blocks(torch.tanh(self.inp(x))))


{definitions}
dist.init_process_group("gloo")
torch.manual_seed(0)
net = Net()
{before}
model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({{Block}}), {options}, device_id=torch.device("cpu"))
{after}
{optimizer}
for step in range(3):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    loss = model(x).float().pow(2).mean()
    loss.backward()
    {between}
    opt.step()
    opt.zero_grad()
    {end}
"""

ORIGINAL_PARAMETERS = "use_orig_params=True"
FLAT = "use_orig_params=False"
NO_SHARD = "use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD"
ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=0.05)"


@dataclass(frozen=True)
class Case:
    """Statements that take places in the program; `form` is that of the migration."""

    form: str = "auto"
    definitions: str = ""
    before: str = ""
    options: str = ORIGINAL_PARAMETERS
    after: str = ""
    optimizer: str = ADAM
    between: str = ""
    end: str = ""

    def text(self) -> str:
        """The program."""
        values = {name: value for name, value in vars(self).items() if name != "form"}
        inner = ("between", "end")
        return PROGRAM.format(
            **{n: v.replace("\n", "\n    ") if n in inner else v for n, v in values.items()}
        )


def by_name(condition: str) -> str:
    """An optimizer with a rate of its own for parameters whose name `n` meets a condition."""
    groups = f'[{{"params": [w], "lr": 0.2 if {condition} else 0.01}} for n, w in model.named_parameters()]'
    return f"opt = torch.optim.AdamW({groups})  # HERE"


RATES = "for group in opt.param_groups:\n    group['lr'] = 0.05 / (1.0 + size)"

CASES = {
    # Names under use_orig_params=True.
    "name in a set": Case(optimizer=by_name('n in {"head.weight", "head.bias"}')),
    "name equals": Case(optimizer=by_name('n == "inp.weight"')),
    "first part of a name": Case(optimizer=by_name('n.split(".")[0] == "head"')),
    "slice of a name": Case(optimizer=by_name('n[:3] == "inp"')),
    "pattern of names": Case(optimizer=by_name('fnmatch.fnmatch(n, "blocks.?.a.*")')),
    "name in a loop": Case(
        after=(
            "slow, fast = [], []\n"
            "for n, w in model.named_parameters():\n"
            '    if n.startswith("inp"):  # HERE\n'
            "        fast.append(w)\n"
            "    else:\n"
            "        slow.append(w)"
        ),
        optimizer='opt = torch.optim.AdamW([{"params": slow, "lr": 0.01}, {"params": fast + [], "lr": 0.2}])',
    ),
    "rate by name": Case(
        definitions='TABLE = {"head.weight": 0.2, "head.bias": 0.1}\n',
        optimizer=(
            'groups = [{"params": [w], "lr": TABLE.get(n, 0.01)} for n, w in model.named_parameters()]  # HERE\n'
            "opt = torch.optim.AdamW(groups)"
        ),
    ),
    # Freezing after wrapping under use_orig_params=False.
    "freeze a module": Case(options=FLAT, after="model.module.inp.requires_grad_(False)  # HERE"),
    "freeze by class": Case(
        options=FLAT,
        after=(
            "for m in model.modules():\n"
            "    if isinstance(m, nn.LayerNorm):\n"
            "        m.requires_grad_(False)  # HERE"
        ),
    ),
    "freeze the parameters of a module": Case(
        options=FLAT,
        after="for w in model.module.head.parameters():\n    w.requires_grad_(False)  # HERE",
    ),
    "freeze without parameters of torch's": Case(
        options=FLAT,
        after="for w in model.module.inp._parameters.values():\n    w.requires_grad_(False)  # HERE",
    ),
    # Number and order of flat parameters.
    "last of a list": Case(
        options=FLAT,
        optimizer=(
            "params = list(model.parameters())\n"
            'opt = torch.optim.AdamW([{"params": params[:-1], "lr": 0.001}, {"params": params[-1:], "lr": 0.1}])  # HERE'
        ),
    ),
    "enumerated": Case(
        options=FLAT,
        optimizer=(
            'opt = torch.optim.AdamW([{"params": [w], "lr": 0.05 / 2 ** i} for i, w in enumerate(model.parameters())])  # HERE'
        ),
    ),
    "number of parameters": Case(
        options=FLAT,
        after="count = len(list(model.parameters()))  # HERE",
        optimizer="opt = torch.optim.AdamW(model.parameters(), lr=0.1 / count)",
    ),
    "every other one": Case(
        options=FLAT,
        optimizer="opt = torch.optim.AdamW(list(model.parameters())[::2], lr=0.05)  # HERE",
    ),
    # Values read from weights.
    "norms of modules": Case(
        end=f"size = sum(m.weight.norm().item() for m in model.modules() if isinstance(m, nn.Linear))  # HERE\n{RATES}"
    ),
    "one weight": Case(
        end=f"size = model.module.head.weight.detach().abs().sum().item()  # HERE\n{RATES}"
    ),
    "next of parameters": Case(
        end=f"size = next(model.parameters()).detach().abs().mean().item()  # HERE\n{RATES}"
    ),
    "moments": Case(
        end=(
            "size = 0.0\n"
            "for w, state in opt.state.items():\n"
            '    size += state["exp_avg"].norm().item()  # HERE\n'
            f"{RATES}"
        )
    ),
    # Parameters taken before wrapping.
    "rates by parameter": Case(
        form="torch",
        before="rate = {w: 0.05 / 2 ** i for i, w in enumerate(net.parameters())}",
        optimizer='opt = torch.optim.AdamW([{"params": [w], "lr": rate.get(w, 0.001)} for w in model.parameters()])  # HERE',
    ),
    "groups before": Case(
        form="torch",
        before='groups = [{"params": list(net.inp.parameters()), "lr": 0.1}, {"params": list(net.blocks.parameters())}]',
        optimizer="opt = torch.optim.AdamW(groups, lr=0.01)  # HERE",
    ),
    "unfrozen later": Case(
        form="torch",
        before="late = list(net.inp.parameters())\nfor w in late:\n    w.requires_grad_(False)",
        end="if step == 0:\n    for w in late:\n        w.requires_grad_(True)  # HERE",
    ),
    "scaled gradients of a list": Case(
        form="torch",
        before="own = list(net.head.parameters())",
        between="for w in own:\n    if w.grad is not None:  # HERE\n        w.grad.mul_(4.0)",
    ),
    # Parameters written in forward under NO_SHARD.
    "codebook": Case(
        definitions=(
            "class Scaled(nn.Module):\n"
            "    def __init__(self, inner):\n"
            "        super().__init__()\n"
            "        self.inner, self.scale = inner, nn.Parameter(torch.ones(8))\n\n"
            "    def forward(self, x):\n"
            "        with torch.no_grad():\n"
            "            self.scale.data.copy_(x.abs().mean() + self.scale * 0.5)  # HERE\n"
            "        return self.inner(x) * self.scale\n\n"
        ),
        before="net.inp = Scaled(net.inp)",
        options=NO_SHARD,
    ),
    # A class as a key.
    "class as a key": Case(
        definitions="RATES = {Block: 0.05, nn.Linear: 0.001}\n",
        optimizer=(
            "groups, seen = [], set()\n"
            "for module in model.modules():\n"
            "    rate = RATES.get(type(module))  # HERE\n"
            "    own = [w for w in module.parameters() if id(w) not in seen]\n"
            "    if rate and own:\n"
            "        seen.update(map(id, own))\n"
            '        groups.append({"params": own, "lr": rate})\n'
            "opt = torch.optim.AdamW(groups)"
        ),
    ),
    "name of a class": Case(
        optimizer=(
            "groups = []\n"
            "for module in model.modules():\n"
            "    own = list(module.parameters(recurse=False))\n"
            '    rate = 0.1 if module._get_name() == "Block" or own else 0.01  # HERE\n'
            '    depth = 2 if module.__class__.__name__ == "Block" else 1\n'
            "    if own:\n"
            '        groups.append({"params": own, "lr": rate * depth})\n'
            "opt = torch.optim.AdamW(groups)"
        ),
        form="torch",
    ),
    "depth of children": Case(
        definitions=(
            "def rates(module, lr):\n"
            "    for child in module.children():  # HERE\n"
            "        own = list(child.parameters(recurse=False))\n"
            "        if own:\n"
            '            yield {"params": own, "lr": lr}\n'
            "        yield from rates(child, lr / 2)\n\n"
        ),
        optimizer="opt = torch.optim.AdamW(list(rates(model, 0.4)))",
    ),
    # First weights after wrapping, and another for each rank.
    "first weights by modules": Case(
        after=(
            "torch.manual_seed(5)\n"
            "for m in model.modules():\n"
            "    if isinstance(m, nn.Linear):\n"
            "        nn.init.normal_(m.weight, std=0.1)  # HERE"
        )
    ),
    "ranks with seeds of their own": Case(
        form="torch",
        before="torch.manual_seed(dist.get_rank())\nnet.head = nn.Linear(8, 4)",
        options=f"{ORIGINAL_PARAMETERS}, sync_module_states=False",
    ),
    # By shape.
    "rates by shape": Case(
        optimizer=(
            "groups = []\n"
            "for w in model.parameters():\n"
            '    groups.append({"params": [w], "lr": 0.1 if w.ndim > 1 else 0.01})  # HERE\n'
            "opt = torch.optim.AdamW(groups)"
        )
    ),
    "decay by shape": Case(
        optimizer=(
            "decay, others = [], []\n"
            "for w in model.parameters():\n"
            "    if w.dim() >= 2:  # HERE\n"
            "        decay.append(w)\n"
            "    else:\n"
            "        others.append(w)\n"
            'groups = [{"params": decay, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]\n'
            "opt = torch.optim.AdamW(groups, lr=0.05)"
        )
    ),
}
