"""Parameters that a program takes before it shards: what becomes of them behind that."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = build()
"""
WRAP = "model = FSDP(net, use_orig_params=True)\n"


def marked(folder: Path, code: str, form: str) -> set[str]:
    program = HEAD + code + "\n"
    lines = [n for n, line in enumerate(program.splitlines(), 1) if "HERE" in line]
    found = analysed(folder, program, form=form).findings
    return {
        " ".join(f.message.split()[:3]) for f in found if f.code == "FSDP529" and f.line in lines
    }


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (
            "rate = {p: 0.1 for p in net.parameters()}",
            "groups = [rate.get(p) for p in model.parameters()]",
        ),
        (
            "tags = {}\nfor n, p in net.named_parameters():\n    tags[p] = n",
            "print([tags[p] for p in held])",
        ),
        (
            "rate = {id(p): i for i, m in enumerate(net) for p in m.parameters()}",
            "lr = rate[id(q)]",
        ),
        ("known = {id(p) for p in net.head.parameters()}", "seek(known)"),
        (
            "rate = {}\nfor m, lr in ((net.head, 1), (net.body, 2)):\n    rate.update({p: lr for p in m.parameters()})",
            "lr = rate.get(q)",
        ),
        (
            "order = OrderedDict((p, i) for i, p in enumerate(net.parameters()))",
            "lr = order.get(q)",
        ),
        ("known = set()\nfor p in net.parameters():\n    known.add(p)", "seek(known)"),
    ],
)
def test_keys_are_lost_in_each_form(before: str, behind: str, tmp_path: Path) -> None:
    code = f"{before}\n{WRAP}{behind}  # HERE"
    for form in ("auto", "torch", "bridge"):
        assert marked(tmp_path, code, form) == {"This has parameters"}
        flat = code.replace("use_orig_params=True", "use_orig_params=False")
        assert marked(tmp_path, flat, form) == set()  # FSDP1's model had none of them either


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("groups = [{'params': list(net[:2].parameters())}]", "torch.optim.AdamW(groups)"),
        ("late = list(net[0].parameters())", "for p in late:\n    p.requires_grad_(True)"),
        ("params = [*net.parameters()]", "torch.nn.utils.clip_grad_value_(params, 1)"),
        (
            "parts = {n: list(m.parameters()) for n, m in net.named_children()}",
            "torch.optim.AdamW(parts['head'])",
        ),
        ("head = net.head.weight", "head.grad = None"),
        ("late = []\nfor m in net.blocks:\n    late.extend(m.parameters())", "unfreeze(late)"),
        (
            "def of(module):\n    return [p for p in module.parameters()]\nparams = of(net)",
            "clip(params)",
        ),
    ],
)
def test_lists_are_kept_by_all_but_the_torch_form(before: str, behind: str, tmp_path: Path) -> None:
    code = f"{before}\n{WRAP}" + behind.replace("\n", "  # HERE\n", 1)
    code += "  # HERE"
    assert marked(tmp_path, code, "torch") == {"This uses parameters"}
    assert marked(tmp_path, code, "auto") == set()


def test_a_class_that_shards_in_a_method_of_its_own(tmp_path: Path) -> None:
    code = """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.slow, self.fast = list(net.body.parameters()), list(net.head.parameters())

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

    def optimizer(self):
        return torch.optim.AdamW([{"params": self.slow}, {"params": self.fast}])  # HERE
"""
    assert marked(tmp_path, code, "torch") == {"This uses parameters"}


@pytest.mark.parametrize(
    "code",
    [
        "count = sum(p.numel() for p in net.parameters())\n{wrap}print(count)  # HERE",
        "start = [p.detach().clone() for p in net.parameters()]\n{wrap}print(start)  # HERE",
        "params = list(net.parameters())\ncheck(params)  # HERE\n{wrap}",
        "params = list(other.parameters())\n{wrap}torch.optim.AdamW(params)  # HERE",
        "{wrap}params = list(model.parameters())\ntorch.optim.AdamW(params)  # HERE",
    ],
)
def test_what_is_no_parameter_of_before_is_safe(code: str, tmp_path: Path) -> None:
    for form in ("auto", "torch"):
        assert marked(tmp_path, code.format(wrap=WRAP), form) == set()


@pytest.mark.parametrize("orig", ["True", "False"])
@pytest.mark.parametrize(
    ("before", "behind", "code"),
    [
        ("groups = [*net.parameters()]", "torch.optim.AdamW(groups)  # HERE", "FSDP529"),
        ("torch.optim.AdamW(net.parameters())  # HERE", "", "FSDP003"),
        ("for p in net.parameters():\n    p.decays = False  # HERE", "", "FSDP003"),
    ],
)
def test_a_second_run_from_the_default_form_finds_them_too(
    before: str, behind: str, code: str, orig: str, tmp_path: Path
) -> None:
    wrap = WRAP.replace("True", orig)
    auto = analysed(tmp_path, f"{HEAD}{before}\n{wrap}{behind}\n").after["train.py"]
    assert "like_fsdp1(net" in auto
    found = analysed(tmp_path, auto, form="torch")
    lines = auto.splitlines()
    codes = {f.code for f in found.findings if "HERE" in lines[f.line - 1]}
    was_lost = orig == "False" and "decays" in before  # under FSDP1, too
    assert codes == (set() if was_lost else {code})


MADE = """\
def build():
    net = Net()
    kept = set()
    for m in net.modules():
        {note}
    return net, kept


def groups(model, kept):
    return [p for p in model.parameters() if id(p) in kept]  # HERE


net, kept = build()
model = FSDP(net, use_orig_params=True)
groups(model, kept)
"""


@pytest.mark.parametrize(
    "note",
    [
        "kept.update(map(id, m.parameters(recurse=False)))",
        "kept.add(id(m.bias))",
        "kept |= {id(p) for p in m.parameters()}\n        kept.update({id(m.weight)})",
    ],
)
def test_what_notes_parameters_and_makes_the_model(note: str, tmp_path: Path) -> None:
    for form in ("auto", "torch"):
        assert marked(tmp_path, MADE.format(note=note), form) == {"This has parameters"}
    after = MADE.format(note=note).replace("groups(model, kept)\n", "groups(model, set())\n")
    assert marked(tmp_path, after, "torch") == set()


@pytest.mark.parametrize(
    ("store", "read"),
    [
        ("self.items[name] = tensor", "self.items.items()"),
        ("self.items.append(tensor)", "self.items"),
        ("self.one = tensor", "self.one"),
    ],
)
def test_parameters_that_a_method_stores(store: str, read: str, tmp_path: Path) -> None:
    code = (
        f"class Watcher:\n    def watch(self, name, tensor):\n        {store}\n        return self\n"
        f"    def report(self):\n        return list({read})  # HERE\n"
        f"watcher = Watcher().watch('head', net.head.weight)\n{WRAP}watcher.report()"
    )
    assert marked(tmp_path, code, "torch") == {"This uses parameters"}
    assert marked(tmp_path, code, "auto") == set()
    assert marked(tmp_path, code.replace("net.head", "other.head"), "torch") == set()


def test_parameters_that_an_object_gets_from_the_module(tmp_path: Path) -> None:
    code = (
        "class Clip:\n    def __init__(self, net, value):\n"
        "        self.own = [p for part in (net.user, net.item) for p in part.parameters()]\n"
        "    def __call__(self):\n        nn.utils.clip_grad_value_(self.own, 1)  # HERE\n"
        f"clip = Clip(net, 0.1)\n{WRAP}clip()"
    )
    assert marked(tmp_path, code, "torch") == {"This uses parameters"}
    assert marked(tmp_path, code, "auto") == set()
    behind = code.replace(f"clip = Clip(net, 0.1)\n{WRAP}", f"{WRAP}clip = Clip(model, 0.1)\n")
    assert marked(tmp_path, behind, "torch") == set()
