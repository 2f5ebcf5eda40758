"""What a function takes from a sharded model: the safe list, and what is not on it."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import collections
import fnmatch
import itertools
import operator
import re

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = build()
model = FSDP(net, use_orig_params={original})
"""


def uses(folder: Path, code: str, original: bool = True) -> set[str]:
    """The first words of the findings on the line that is marked."""
    program = HEAD.format(original=original) + code + "\n"
    found = analysed(folder, program)
    lines = [n for n, line in enumerate(program.splitlines(), 1) if "HERE" in line]
    assert lines
    marked = [f for f in found.findings if f.code == "FSDP529" and f.line in lines]
    return {" ".join(f.message.split()[:3]) for f in marked}


@pytest.mark.parametrize(
    "code",
    [
        "for m in model.modules():\n    total += m.weight.norm()  # HERE",
        "total = sum(m.weight.norm().item() for m in model.modules())  # HERE",
        "total = model[2].weight.norm()  # HERE",
        "for w in itertools.chain(model.parameters(), extra):\n    total += w.norm()  # HERE",
        "first = next(model.parameters())\ntotal = first.norm()  # HERE",
        "norms = torch._foreach_norm(list(model.parameters()))  # HERE",
        "loss = chunked(hidden, model.head.weight, labels)  # HERE",
        "def close(hidden, weight):\n    return hidden @ weight.t()  # HERE\n"
        "loss = close(hidden, model.head.weight)",
        "total = operator.attrgetter('head.weight')(model).norm()  # HERE",
        "total = model.get_parameter('head.weight').max()  # HERE",
        "kept = {n: p.clone() for n, p in model.named_parameters()}\ntotal = sum(kept[n].norm() for n in kept)  # HERE",
        "head = model.module.head\ntotal = head.weight.diag().sum()  # HERE",
        "class Meter:\n    def __call__(self, p):\n        return p.norm()\n\n    def of(self, p):\n"
        "        return p.norm()  # HERE\nmeter = Meter()\ntotal = sum(map(meter.of, model.parameters()))",
    ],
)
def test_values_that_are_read(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == {"This reads a"}


@pytest.mark.parametrize(
    "test",
    [
        'n.startswith("head")',
        'n == "head.weight"',
        'n in {"head.weight", "head.bias"}',
        'n.split(".")[0] == "head"',
        'n.count(".") > 2',
        'n[:4] == "head"',
        "RATES.get(n, 0.1) > 0.1",
        'fnmatch.fnmatch(n, "head*")',
        're.match("head", n)',
        '"blocks.0" in n',
        "n in args.trained",
        "any(n.startswith(each) for each in prefixes)",
        'n.partition(".")[0] == "head"',
        'f"model.{n}" == "model.head.weight"',
        '{"lr": 1, "rates": {"head.weight": 2}}["rates"].get(n)',
        'config["rates"].get(n)',
        "layer_of(n) > 2",
    ],
)
def test_names_that_had_a_prefix(test: str, tmp_path: Path) -> None:
    rates = 'RATES = {"head.weight": 0.2}\n'
    code = f"{rates}head = [p for n, p in model.named_parameters() if {test}]  # HERE"
    assert uses(tmp_path, code) == {"This uses names"}


@pytest.mark.parametrize(
    "code",
    [
        "table = dict(model.named_parameters())\nhead = table['head.weight']  # HERE",
        "table = dict(model.named_parameters())\nhead = [table.pop(n) for n in ('head.weight', 'head.bias')]  # HERE",
        "names = {n for n, _ in model.named_parameters()} & {'head.weight'}  # HERE",
        "tops = itertools.groupby(model.named_parameters(), key=lambda item: item[0].split('.')[0])  # HERE",
        "def depth(name):\n    match name.split('.'):  # HERE\n        case ['blocks', *_]:\n            return 1\n"
        "rates = [depth(n) for n, p in model.named_parameters()]",
        "class Rates:\n    FAST = frozenset(('head.weight',))\n\n    def of(self, name):\n"
        "        return name in self.FAST  # HERE\nrates = [Rates().of(n) for n, p in model.named_parameters()]",
    ],
)
def test_names_by_other_ways(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == {"This uses names"}
    assert uses(tmp_path, code, original=False) == set()


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("params = list(model.parameters())\nlast = params[-1:]  # HERE", "This depends on"),
        ("for i, p in enumerate(model.parameters()):  # HERE\n    rate(i, p)", "This depends on"),
        ("number = len(list(model.parameters()))  # HERE", "This depends on"),
        ("model.module.head.requires_grad_(False)  # HERE", "This now freezes"),
        (
            "for m in model.modules():\n    if isinstance(m, Block):\n        m.requires_grad_(False)  # HERE",
            "This now freezes",
        ),
        ("first, *rest = model.parameters()  # HERE", "This depends on"),
        (
            "queue = collections.deque(model.parameters())\nlast = queue.pop()  # HERE",
            "This depends on",
        ),
        ("count = sum(1 for _ in model.parameters())  # HERE", "This depends on"),
        ("pairs = zip(model.parameters(), itertools.count())  # HERE", "This depends on"),
        ("half = list(itertools.islice(model.parameters(), 2))  # HERE", "This depends on"),
        (
            "def freeze(part):\n    for p in part.parameters():\n        p.requires_grad = False  # HERE\n"
            "freeze(model.module.head)",
            "This now freezes",
        ),
        ("getattr(model.module, part).requires_grad_(False)  # HERE", "This now freezes"),
        (
            "part = model.module.get_submodule('head')\npart.requires_grad_(False)  # HERE",
            "This now freezes",
        ),
        (
            "inner = model._fsdp_wrapped_module\ninner.head.bias.requires_grad = False  # HERE",
            "This now freezes",
        ),
        (
            "layers = [model.module.head]\nfor layer in layers:\n    for p in layer.parameters():\n"
            "        p.requires_grad_(False)  # HERE",
            "This now freezes",
        ),
        (
            "def freeze(*parts):\n    for part in parts:\n        part.requires_grad_(False)  # HERE\n"
            "freeze(model.module.head)",
            "This now freezes",
        ),
        (
            "for child in model.module.children():\n    if isinstance(child, nn.Linear):\n"
            "        child.weight.requires_grad = False  # HERE",
            "This now freezes",
        ),
        (
            "for m in model.modules():\n    for n, p in m._parameters.items():\n        p.requires_grad_(False)  # HERE",
            "This now freezes",
        ),
        (
            "norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]\nfor m in norms:\n"
            "    m.bias.requires_grad_(False)  # HERE",
            "This now freezes",
        ),
    ],
)
def test_flat_parameters(code: str, use: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code, original=False) == {use}
    assert uses(tmp_path, code) == set()


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("for m in model.modules():\n    nn.init.normal_(m.weight)  # HERE", "This draws random"),
        ("for m in model.modules():\n    rate = RATES.get(type(m))  # HERE", "This looks up"),
        (
            "def rates(module, lr):\n    for child in module.children():  # HERE\n        rates(child, lr / 2)\n"
            "rates(model, 0.4)",
            "This now finds",
        ),
        (
            "for p in model.parameters():\n    torch.save(p.detach().cpu(), path)  # HERE",
            "This saves parameters",
        ),
        (
            "torch.save({n: p.detach() for n, p in model.named_parameters()}, path)  # HERE",
            "This saves parameters",
        ),
        ("for m in model.modules():\n    m.reset_parameters()  # HERE", "This draws random"),
        ("kinds = collections.Counter(map(type, model.modules()))  # HERE", "This looks up"),
        (
            "for m in model.modules():\n    match type(m):  # HERE\n        case _:\n            pass",
            "This looks up",
        ),
        (
            "def height(m):\n    return 1 + max(height(c) for c in m.children())  # HERE\nheight(model)",
            "This now finds",
        ),
        ("number = len(list(model.modules()))  # HERE", "This counts or"),
        (
            "for m in model.modules():\n    cls = type(m)  # HERE\n    rate = RATES[cls]  # HERE",
            "This looks up",
        ),
        (
            "optimizer = torch.optim.AdamW(model.parameters())\n"
            "size = sum(optimizer.state[p]['exp_avg'].norm() for p in model.parameters())  # HERE",
            "This reads a",
        ),
        (
            "optimizer = torch.optim.AdamW(model.parameters())\n"
            "size = [v['exp_avg'].norm() for v in optimizer.state.values()]  # HERE",
            "This reads a",
        ),
    ],
)
def test_other_uses(code: str, use: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == {use}


@pytest.mark.parametrize(
    "code",
    [
        "optimizer = torch.optim.AdamW(model.parameters())  # HERE",
        "params = [p for p in model.parameters() if p.requires_grad]  # HERE\noptimizer = torch.optim.SGD(params)",
        "decay = [p for n, p in model.named_parameters() if 'bias' not in n]  # HERE",
        "decay = [p for n, p in model.named_parameters() if n.endswith('.bias')]  # HERE",
        "for n, p in model.named_parameters():\n"
        "    n = n.replace('_fsdp_wrapped_module.', '')\n    group(n.split('.')[0])  # HERE",
        "for p, q in zip(model.parameters(), net.parameters()):\n    q.data.mul_(0.9).add_(p.data)  # HERE",
        "for p in model.parameters():\n    p.grad = None  # HERE",
        "device = next(model.parameters()).device  # HERE",
        "for n, p in model.named_parameters():\n    print(n, p.dtype)  # HERE",
        "for m in model.modules():\n    if isinstance(m, nn.Dropout):\n        m.p = 0  # HERE",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # HERE",
        "for m in other.modules():\n    total += m.weight.norm()  # HERE",
        "for child in model.children():  # HERE\n    child.eval()",
        "for n, p in model.named_parameters():\n    rank0_print(n)  # HERE",
        "for n, p in model.named_parameters():\n    n = clean_tensor_name(n)  # HERE",
        "found = {'all': {}}\nfor n, p in model.named_parameters():\n    found['all'][n] = p  # HERE",
        "leaf = [n.split('.')[-1] for n, p in model.named_parameters()]  # HERE",
        "kept = {n: p.detach() for n, p in model.named_parameters()}\nfor n in kept:\n    kept[n].mul_(0.9)  # HERE",
        "def groups(model):\n    return [p for p in model.parameters()], 0.1\nparams, decay = groups(model)\n"
        "options = dict(weight_decay=decay)  # HERE",
        "for p in model.parameters():\n    p.requires_grad_(False)  # HERE",
        "step = [optimizer.state[p]['step'] for p in model.parameters()]  # HERE",
        "names = [n for n, p in model.named_parameters()]\njson.dumps(names)  # HERE",
        "norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]\n"
        "for i, m in enumerate(norms):  # HERE\n    print(i)",
        "def param_init_fn(module):\n    nn.init.zeros_(module.weight)  # HERE\nparam_init_fn(model[0])",
        "def shard(model):\n    fully_shard(model)\n    print(model.weight.norm())  # HERE\nshard(model)",
    ],
)
def test_what_means_the_same_is_safe(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == set()
    assert uses(tmp_path, code, original=False) == set()


def test_what_is_taken_before_the_model_is_sharded_is_safe(tmp_path: Path) -> None:
    code = "def prepare(net):\n    for p in net.parameters():\n        p.requires_grad_(False)  # HERE\n    return FSDP(net)\n"
    assert uses(tmp_path, f"{code}model = prepare(FSDP(build()))", original=False) == set()


def test_a_function_has_one_finding_for_each_kind_of_use(tmp_path: Path) -> None:
    code = "for m in model.modules():\n    a += m.weight.norm()\n    b += m.bias.sum()\n"
    program = HEAD.format(original=True) + code
    found = [f for f in analysed(tmp_path, program).findings if f.code == "FSDP529"]
    assert [(f.line, f.message.endswith("Also at line 15.")) for f in found] == [(14, True)]


@pytest.mark.parametrize(
    ("code", "bridge"),
    [
        ("total = model[2].weight.norm()", True),
        ("torch.save([p.detach() for p in model.parameters()], path)", True),
        ("head = [p for n, p in model.named_parameters() if n.startswith('head')]", False),
        ("rates = [RATES.get(type(m)) for m in model.modules()]", False),
        ("number = len(list(model.modules()))", False),
    ],
)
def test_wrappers_are_still_there_on_the_bridge(code: str, bridge: bool, tmp_path: Path) -> None:
    program = HEAD.format(original=True) + code + "\n"
    codes = [f.code for f in analysed(tmp_path, program, form="bridge").findings]
    assert ("FSDP529" in codes) == bridge
    assert "FSDP529" in [f.code for f in analysed(tmp_path, program).findings]


@pytest.mark.parametrize(
    "code",
    [
        "rates = [RATES[m.__class__] for m in model.modules()]",
        "rates = [RATES.get(m._get_name()) for m in model.modules()]",
    ],
)
def test_like_fsdp1_keeps_what_a_module_says_of_its_class(code: str, tmp_path: Path) -> None:
    program = HEAD.format(original=True) + code + "\n"
    said = "This looks up the exact class of a module"
    for form, is_found in (("torch", True), ("auto", False), ("bridge", False)):
        found = analysed(tmp_path, program, form=form).findings
        assert any(f.message.startswith(said) for f in found) == is_found


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD"])
def test_shapes_are_as_before_where_each_rank_had_whole_parameters(
    strategy: str, tmp_path: Path
) -> None:
    program = HEAD.format(original=f"True, sharding_strategy=ShardingStrategy.{strategy}")
    program = program.replace(
        "import FullyShardedDataParallel as FSDP",
        "import FullyShardedDataParallel as FSDP, ShardingStrategy",
    )
    program += "decay = [p for p in model.parameters() if p.ndim > 1]\nrow = model.head.weight[0]\n"
    codes = [f.code for f in analysed(tmp_path, program).findings]
    assert codes.count("FSDP507") == (0 if strategy == "NO_SHARD" else 2)


def test_a_hook_before_forward_sees_inputs_that_are_cast(tmp_path: Path) -> None:
    program = (
        HEAD.format(original="True, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)")
        + "model.register_forward_pre_hook(look)\nother.register_forward_pre_hook(look)\n"
    )
    for form, number in (("auto", 1), ("torch", 1), ("bridge", 0)):
        found = analysed(tmp_path, program, form=form).findings
        assert sum(f.message.startswith("This hook now sees inputs") for f in found) == number
