"""What is taken from a sharded model, or its optimizer, and used in a function or class that is given it."""

from pathlib import Path

import pytest

from .test_taken_out import uses

OPTIMIZER = "opt = torch.optim.Adam(model.parameters())\n"


@pytest.mark.parametrize(
    "code",
    [
        "def mean(o):\n    return sum(s['exp_avg'].mean() for s in o.state.values())  # HERE\nmean(opt)",
        "def rms(o, p):\n    st = o.state.get(p)\n    return st['exp_avg_sq'].sum()  # HERE\n"
        "def all_of(o):\n    return [rms(o, p) for p in o.param_groups[0]['params']]\nall_of(opt)",
        "class Guard:\n    def __init__(self, optimizer, factor):\n"
        "        self.optimizer, self.factor = optimizer, factor\n    def now(self):\n"
        "        for p, st in self.optimizer.state.items():\n"
        "            yield st['exp_avg'].norm()  # HERE\nguard = Guard(opt, 2)",
        "class Guard:\n    def __init__(self, o):\n        self.o = o\n    def top(self):\n"
        "        first = self.o.param_groups[0]\n        return [p.max() for p in first['params']]  # HERE\n"
        "guard = Guard(opt)",
        "def made(m):\n    return torch.optim.SGD(params=m.parameters(), lr=1)\n"
        "other = made(model)\nfor st in other.state.values():\n    total += st['momentum'].norm()  # HERE",
        "state = opt.state_dict()['state']\ntotal = sum(s['exp_avg'].norm() for s in state.values())  # HERE",
    ],
)
def test_states_of_optimizers(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, OPTIMIZER + code) == {"This reads a"}
    other = f"plain = nn.Linear(2, 2)\n{OPTIMIZER.replace('model', 'plain')}{code}"
    assert uses(tmp_path, other.replace("(model)", "(plain)")) == set()


@pytest.mark.parametrize(
    "code",
    [
        "def speeds(o):\n    return [g['lr'] for g in o.param_groups]  # HERE\nspeeds(opt)",
        "for group in opt.param_groups:\n    group['lr'] *= 0.5  # HERE",
        "for group in opt.param_groups:\n    for p in group['params']:\n        p.grad = None  # HERE",
        "print(opt.state_dict()['state'][0]['step'])  # HERE",
        "print(len(opt.param_groups))  # HERE",
        "class Own(torch.optim.Optimizer):\n    def __init__(self, params):\n        super().__init__(params, {})\n"
        "class Layer(nn.Module):\n    def __init__(self, d):\n        self.fc = nn.Linear(d, d)  # HERE\n"
        "own = Own(model.parameters())",
        "if len(list(model.parameters())) > 0:  # HERE\n    pass",
        "assert not len(opt.param_groups[0]['params'])  # HERE",
    ],
)
def test_of_optimizers_that_mean_the_same(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, OPTIMIZER + code) == set()
    assert uses(tmp_path, OPTIMIZER + code, original=False) == set()


@pytest.mark.parametrize(
    "code",
    [
        "last = opt.param_groups[0]['params'].pop()  # HERE",
        "def tail(o):\n    return o.param_groups[0]['params'][-1]  # HERE\ntail(opt)",
        "number = len(opt.state_dict()['param_groups'][0]['params'])  # HERE",
        "class Two:\n    def __init__(self, params):\n        *slow, last = params  # HERE\nTwo(model.parameters())",
        "class Two:\n    def __init__(self, params):\n        self.params = list(params)\n"
        "    def last(self):\n        return self.params[-1]  # HERE\nTwo(model.parameters())",
        "def split(first, *rest):\n    return first\ndef pick(params):\n    return params[0]  # HERE\n"
        "pick(list(model.parameters()))",
        "rates = itertools.cycle([1.0, 0.1])\npairs = [(p, r) for p, r in zip(model.parameters(), rates)]  # HERE",
        "def rates():\n    rates = [1.0, 0.1]\n    return dict(zip(model.parameters(), rates))  # HERE",
    ],
)
def test_places_of_flat_parameters(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, OPTIMIZER + code, original=False) == {"This depends on"}
    assert uses(tmp_path, OPTIMIZER + code) == set()


@pytest.mark.parametrize(
    "code",
    [
        "score = {n: zlib.crc32(n.encode()) for n, _ in model.named_parameters()}  # HERE",
        "order = sorted((hash(n), p) for n, p in model.named_parameters())  # HERE",
        "class Sampler:\n    def __init__(self, m):\n        self.entries = [(n, p) for n, p in m.named_parameters()]\n"
        "    def draw(self):\n        return {n: hashlib.md5(f'{n}:1'.encode()) for n, _ in self.entries}  # HERE\n"
        "Sampler(model)",
        "def owner(item):\n    return item[0].rpartition('.')[0]  # HERE\n"
        "for path, items in itertools.groupby(model.named_parameters(), key=owner):\n    pass",
        "def depth(item):\n    return item[0].count('.')  # HERE\nsorted(model.named_parameters(), key=depth)",
        "lengths = {n: len(n) for n, p in model.named_parameters()}  # HERE",
    ],
)
def test_names_that_are_hashed_grouped_and_measured(code: str, tmp_path: Path) -> None:
    code = f"import hashlib\nimport zlib\n{code}"
    assert uses(tmp_path, code) == {"This uses names"}
    assert uses(tmp_path, code, original=False) == set()


@pytest.mark.parametrize(
    "code",
    [
        "class Net(nn.Module):\n    def groups(self):\n        return [[self.embed], [self.head]]\n"
        "for group in model.groups():\n    for module in group:\n        for p in module.parameters():\n"
        "            p.requires_grad = False  # HERE",
        "class Net(nn.Module):\n    def freeze(self, *names):\n        for n in names:\n"
        "            getattr(self, n).requires_grad_(False)  # HERE\nmodel.freeze('embed')",
        "class Net(nn.Module):\n    def freeze(self):\n        for m in self.blocks[:2]:\n"
        "            m.requires_grad_(False)  # HERE\nmodel.freeze()",
        "def lower(m):\n    yield m.embed\n    yield from m.blocks\n"
        "for part in lower(model):\n    part.requires_grad_(False)  # HERE",
        "parts = {'embed': model.embed, 'head': model.head}\n"
        "for part in parts.values():\n    part.requires_grad_(False)  # HERE",
    ],
)
def test_parts_that_functions_give_and_freeze(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code, original=False) == {"This now freezes"}
    assert uses(tmp_path, code) == set()


@pytest.mark.parametrize(
    ("code", "use"),
    [
        (
            "def train(m, is_on):\n    for p in m.parameters():\n        p.requires_grad = is_on  # HERE\ntrain(model, 0)",
            {"This freezes a"},
        ),
        ("model.requires_grad_(step > 10)  # HERE", {"This freezes a"}),
        ("model.requires_grad_(False)  # HERE", set()),
        ("for p in model.parameters():\n    p.requires_grad = False  # HERE", set()),
    ],
)
def test_a_whole_model_that_is_frozen_in_turn(code: str, use: set[str], tmp_path: Path) -> None:
    assert uses(tmp_path, code, original=False) == use
    assert uses(tmp_path, code) == set()


@pytest.mark.parametrize(
    "code",
    [
        "for p in model.parameters():\n    if p.grad is None:  # HERE\n        missing += 1",
        "unused = [n for n, p in model.named_parameters() if p.grad is None]  # HERE",
        "number = sum(p.grad is None for p in model.parameters())  # HERE",
        "def check(params):\n    for p in params:\n        if p.requires_grad and p.grad is None:  # HERE\n"
        "            raise ValueError\ncheck(model.parameters())",
    ],
)
def test_parameters_without_a_gradient_that_are_counted(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == {"This test is"}


@pytest.mark.parametrize(
    "code",
    [
        "for p in model.parameters():\n    if p.grad is None:  # HERE\n        continue",
        "for p in model.parameters():\n    if p.grad is None:  # HERE\n        p.grad = torch.zeros_like(p)",
        "grads = [p.grad for p in model.parameters() if p.grad is not None]  # HERE",
        "for p in model.parameters():\n    if p.grad is None or p.is_sparse:  # HERE\n        continue",
        "for p in model.parameters():\n    if p.main is None:  # HERE\n        missing += 1",
    ],
)
def test_parameters_without_a_gradient_that_are_left_out(code: str, tmp_path: Path) -> None:
    assert uses(tmp_path, code) == set()
