"""One decision for the files that can share a model: all constructors become plain, or all stay on the bridge."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.facts.program import Program
from fsdp_migrate.settings import Options

from .programs import MODEL, TRAIN, analysed, is_plain


def test_a_program_becomes_plain(tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": MODEL}).after
    assert is_plain(after["train.py"])
    assert after["model.py"] == MODEL


def test_an_optimizer_of_another_file_is_seen(tmp_path: Path) -> None:
    main = (
        "import torch\nfrom model import Net\nfrom wrapping import fsdp\n\nmodel = fsdp(Net())\n"
        "print(model(torch.ones(2, 8)))\noptimizer = torch.optim.AdamW(model.parameters())\n"
    )
    wrapping = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def fsdp(model):\n    return FSDP(model)\n"
    )
    files = {"train.py": main, "wrapping.py": wrapping, "model.py": MODEL}
    after = analysed(tmp_path, files).after
    assert "    return fully_shard(model, reshard_after_forward=True)\n" in after["wrapping.py"]


@pytest.mark.parametrize("form", ["from helper import save", "import helper"])
def test_a_file_without_fsdp_counts(tmp_path: Path, form: str) -> None:
    helper = "def save(model):\n    return model.module.state_dict()\n"
    files = {"train.py": f"{form}\n{TRAIN}", "model.py": MODEL, "helper.py": helper}
    program = analysed(tmp_path, files)
    assert not is_plain(program.after["train.py"])
    assert any("helper.py:2" in finding.message for finding in program.findings)


def test_files_around_the_one_that_is_named_count(tmp_path: Path) -> None:
    helper = "from train import FSDP\n\n\ndef save(model):\n    return model.module.state_dict()\n"
    files = {"train.py": f"import helper\n{TRAIN}", "model.py": MODEL, "helper.py": helper}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = analyse(discover([tmp_path / "train.py"]))
    assert [change.path.name for change in report.changes] == ["train.py"]
    assert any("helper.py:5" in finding.message for finding in report.findings)
    (tmp_path / "helper.py").write_text("from train import FSDP\n")
    after = analyse(discover([tmp_path / "train.py"])).changes[0].after.decode()
    assert not is_plain(after), "the class that another file imports stays"


def test_a_file_that_nothing_connects_does_not(tmp_path: Path) -> None:
    other = "def save(model):\n    return model.module.state_dict()\n"
    files = {"a/train.py": TRAIN, "a/model.py": MODEL, "b/other.py": other}
    assert is_plain(analysed(tmp_path, files).after["a/train.py"])


def test_programs_are_decided_each_by_itself(tmp_path: Path) -> None:
    dynamic = TRAIN.replace("FSDP(model)", "FSDP(model, sharding_strategy=config.strategy)")
    files = {"a/train.py": TRAIN, "a/model.py": MODEL, "b/train.py": dynamic, "b/model.py": MODEL}
    after = analysed(tmp_path, files).after
    assert is_plain(after["a/train.py"])
    assert not is_plain(after["b/train.py"])


def test_a_dynamic_import_connects_everything(tmp_path: Path) -> None:
    other = "def save(model):\n    return model.module\n"
    start = f"import importlib\n{TRAIN}\nplugin = importlib.import_module(name)\n"
    files = {"a/train.py": start, "a/model.py": MODEL, "b/other.py": other}
    assert not is_plain(analysed(tmp_path, files).after["a/train.py"])


def test_uses_change_with_their_constructor(tmp_path: Path) -> None:
    uses = """\


def train(model: FSDP, optimizer):
    assert isinstance(model, FSDP)
    with model.no_sync():
        model(1).backward()
    model.clip_grad_norm_(1.0)
    with FSDP.summon_full_params(model):
        print(model)
"""
    after = analysed(tmp_path, {"train.py": TRAIN + uses, "model.py": MODEL}).after
    assert after["train.py"].endswith("""\


def train(model: FSDPModule, optimizer):
    assert isinstance(model, FSDPModule)
    with no_sync(model):
        model(1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with summon_full_params(model):
        print(model)
""")
    stays = TRAIN.replace("FSDP(model)", "FSDP(model, **options)") + uses
    (tmp_path / "again").mkdir()
    after = analysed(tmp_path / "again", {"train.py": stays, "model.py": MODEL}).after
    assert after["train.py"].endswith(uses)


def test_the_bridge_form_changes_imports_only(tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": MODEL}, "bridge").after
    changed = set(after["train.py"].splitlines()) ^ set(TRAIN.splitlines())
    assert changed
    assert all("import" in line for line in changed)


BLOCKS = """\
import torch.nn as nn


class Block(nn.Linear):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(8, 8) for _ in range(2)])

    def units(self):
        return list(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
BY_LIST = TRAIN.replace(
    "FSDP(model)",
    "FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in LIST))",
).replace(
    "import torch\n",
    "import torch\nfrom functools import partial\n"
    "from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy\n",
    1,
)


@pytest.mark.parametrize(
    ("named", "loop"),
    [
        ("list(model.layers)", "for module in model.layers:"),
        ("model.layers", "for module in model.layers:"),
        ("model.units()", "for module in model.units():"),
        ("[*model.layers]", "if module in [*model.layers]:"),
    ],
)
def test_a_list_of_blocks_is_looped_over(tmp_path: Path, named: str, loop: str) -> None:
    files = {"train.py": BY_LIST.replace("LIST", named), "model.py": BLOCKS}
    assert f"    {loop}\n" in analysed(tmp_path, files).after["train.py"]


BUILT = "self.layers = nn.ModuleList([Block(8, 8) for _ in range(2)])"
OTHERWISE = {
    "one block twice": "block = Block(8, 8)\n        self.layers = nn.ModuleList([block for _ in range(2)])",
    "by a function, which may return one twice": BUILT.replace("Block(8, 8)", "make(8)"),
    "of another package": BUILT.replace("Block(8, 8)", "library.Block(8)"),
    "no registered list": BUILT.replace("nn.ModuleList(", "list("),
    "added to": f"{BUILT}\n        self.layers.append(self.layers[0])",
    "in two ways": f"{BUILT}\n        if wide:\n            {BUILT}",
}


@pytest.mark.parametrize("built", OTHERWISE.values(), ids=OTHERWISE)
def test_a_list_built_otherwise_is_only_looked_up(tmp_path: Path, built: str) -> None:
    model = BLOCKS.replace(BUILT, built).replace("import torch", "import library\nimport torch")
    files = {"train.py": BY_LIST.replace("LIST", "model.units()"), "model.py": model}
    after = analysed(tmp_path, files).after["train.py"]
    assert "        if module in model.units():\n            fully_shard(module)\n" in after


ORIGINS = {
    "an optimizer before": (
        "def main():\n    model = Net()\n    optimizer = torch.optim.SGD(model.parameters())\n    model = FSDP(model)\n"
    ),
    "an optimizer before the call of a helper": (
        "def wrap(model):\n    return FSDP(model)\n\n\ndef main():\n    model = Net()\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n    model = wrap(model)\n"
    ),
    "an optimizer that a function makes before": (
        "def build(model, lr):\n    groups = [p for p in model.parameters()]\n    return torch.optim.SGD(groups, lr)\n\n\n"
        "def main():\n    model = Net()\n    o = build(model, 0.1)\n    model = FSDP(model)\n"
    ),
    "an optimizer that the model makes before": (
        "def main():\n    model = Net()\n    o = model.configure_optimizers(0.1)\n    model = FSDP(model)\n"
    ),
    "an optimizer that a function of a function makes before": (
        "def groups(m):\n    return list(m.parameters())\n\n\ndef build(m):\n    return Kept(groups(m))\n\n\n"
        "def main():\n    model = Net()\n    kept = build(model)\n    model = FSDP(model)\n"
    ),
    "what keeps parameters, by a keyword": (
        "def build(m):\n    return Kept(m.parameters())\n\n\n"
        "def main():\n    model = Net()\n    kept = build(m=model)\n    model = FSDP(model)\n"
    ),
    "an optimizer beside the model": "def main():\n    model, optimizer = build()\n    model = FSDP(model)\n",
    "a helper that nothing calls": "def wrap(model):\n    return FSDP(model)\n",
    "an attribute that is made elsewhere": (
        "class Trainer:\n    def wrap(self):\n        self.model = FSDP(self.model)\n"
    ),
    "a name that nothing binds": "model = FSDP(model)\n",
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_optimizer_may_be_older(tmp_path: Path, origin: str) -> None:
    head = TRAIN[: TRAIN.index("def main")]
    after = analysed(tmp_path, {"train.py": head + ORIGINS[origin], "model.py": MODEL}).after
    assert not is_plain(after["train.py"])


@pytest.mark.parametrize("step", ["  ", "\t"])
def test_what_is_new_is_indented_as_the_file_is(step: str, tmp_path: Path) -> None:
    text = TRAIN.replace("FSDP(model)", "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Net}))")
    head = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
    files = {"train.py": head + text.replace("    ", step), "model.py": MODEL}
    after = analysed(tmp_path, files).after
    loop = after["train.py"].partition("for module")[2].splitlines()
    assert [line[: -len(line.lstrip())] for line in loop[1:3]] == [2 * step, 3 * step]


def test_a_helper_whose_callers_are_known(tmp_path: Path) -> None:
    body = "def wrap(model):\n    return FSDP(model)\n\n\ndef main():\n    model = wrap(Net())\n"
    head = TRAIN[: TRAIN.index("def main")]
    after = analysed(tmp_path, {"train.py": head + body, "model.py": MODEL}).after
    assert "    return fully_shard(model)\n" in after["train.py"]


def test_the_class_of_a_model_counts(tmp_path: Path) -> None:
    """Its methods see the names of its parameters, also where the function that wraps it keeps it to itself."""
    model = MODEL + (
        "\n    def groups(self):\n"
        "        return [p for n, p in self.named_parameters() if n.split('.')[0] == 'head']\n"
    )
    body = "def main():\n    model = Net()\n    model = FSDP(model)\n    optimizer = torch.optim.SGD(model.groups())\n"
    text = TRAIN[: TRAIN.index("def main")] + body
    after = analysed(tmp_path, {"train.py": text, "model.py": model}).after
    assert not is_plain(after["train.py"])


def test_a_model_of_another_package_that_goes_nowhere(tmp_path: Path) -> None:
    """No other file is asked, whatever it says of models."""
    text = (
        "import torch\nfrom helper import batches\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from transformers import AutoModel\n\n\ndef main():\n    model = AutoModel.from_config(c)\n"
        "    model = FSDP(model)\n    print(model(batches()))\n"
    )
    helper = "def save(model):\n    return model.module.state_dict()\n"
    after = analysed(tmp_path, {"train.py": text, "helper.py": helper}).after
    assert is_plain(after["train.py"])
    after = analysed(tmp_path, {"train.py": text + "    keep(model)\n", "helper.py": helper}).after
    assert not is_plain(after["train.py"])


THEIRS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModel

import model
from model import Net


def main():
    net = FSDP(MADE)
    print(net(ids, ASKED))
"""


@pytest.mark.parametrize(
    ("made", "asked", "kept"),
    [
        ("AutoModel.from_config(c)", "output_hidden_states=True", True),
        ("AutoModel.from_config(c, output_attentions=True)", "mask", True),
        ("AutoModel.from_config(c)", "mask", False),
        ("Net()", "output_hidden_states=True", False),
        ("model.__dict__[name]()", "output_hidden_states=True", False),
    ],
)
def test_a_model_of_transformers_is_found_by_its_class(
    made: str, asked: str, kept: bool, tmp_path: Path
) -> None:
    train = THEIRS.replace("MADE", made).replace("ASKED", asked)
    after = analysed(tmp_path, {"train.py": train, "model.py": MODEL}).after["train.py"]
    assert is_plain(after)
    assert ("keep_class_names(" in after) is kept


@pytest.mark.parametrize("text", ['print("FSDP")', 'mode == "FSDP"', 'x: Literal["FSDP"] = y'])
def test_text_that_reads_like_the_class_keeps_nothing_on_the_bridge(
    tmp_path: Path, text: str
) -> None:
    assert "fully_shard(model)" in _beside(tmp_path, text)


def test_the_class_in_quotes_keeps_a_constructor_on_the_bridge(tmp_path: Path) -> None:
    assert "fully_shard(model)" not in _beside(tmp_path, 'y: "FSDP" = model')


def _beside(folder: Path, line: str) -> str:
    """A training program with one more line, migrated."""
    (folder / "train.py").write_text(f"{TRAIN}\n\n{line}\n")
    (change,) = analyse([folder / "train.py"], Options()).changes
    return change.after.decode()


def test_a_run_keeps_nothing_of_those_before(tmp_path: Path) -> None:
    kept = []
    for _ in range(3):
        _beside(tmp_path, "")
        gc.collect()
        kept.append(sum(isinstance(each, Program) for each in gc.get_objects()))
    assert kept[0] == kept[1] == kept[2]


LONG = """\
import torch
from model import Net
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main(args, offload):
    model = FSDP(
        Net()
        .eval()
        .train(),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        cpu_offload=(
            CPUOffload(offload_params=True)
            if offload
            else None
        ),
        sync_module_states=(
            args.low_memory
            and not offload
        ),
        use_orig_params=True,
    )
    return torch.optim.AdamW(model.parameters())
"""


def test_arguments_over_several_lines_become_statements_in_brackets(tmp_path: Path) -> None:
    program = analysed(tmp_path, {"train.py": LONG, "model.py": MODEL})
    assert [f.action.value for f in program.findings if f.code == "FSDP002"] == ["rewrite"]
    assert "    model = Net().eval().train()\n" in program.after["train.py"]
    assert (
        "    offload_policy = CPUOffloadPolicy() if offload else OffloadPolicy()\n"
        in program.after["train.py"]
    )
    assert "    if args.low_memory and not offload:\n" in program.after["train.py"]


def test_a_helper_that_looks_at_the_model_before_it_is_wrapped(tmp_path: Path) -> None:
    helper = """\
def named(model, name):
    for module in model.modules():
        if module.__class__.__name__ == name:
            return module
"""
    text = TRAIN.replace("    model = FSDP", '    named(model, "Linear").eval()\n    model = FSDP')
    text = f"from helper import named\n{text}"
    files = {"train.py": text, "model.py": MODEL, "helper.py": helper}
    after = analysed(tmp_path, files).after
    assert "    fully_shard(model)\n" in after["train.py"]
    files["train.py"] = f"{text}    named(model, 1)\n"
    after = analysed(tmp_path, files).after
    assert "fully_shard" not in after["train.py"]


LOOKED_UP = """\
import functools

import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main(args):
    model = Net()
    block = args.find(model, "Block")
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    model = FSDP(model, auto_wrap_policy=policy)
    return torch.optim.AdamW(model.parameters())
"""


def test_a_class_that_is_looked_up_may_be_the_models_own(tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": LOOKED_UP, "model.py": MODEL}).after
    assert "        if module is not model and isinstance(module, block):\n" in after["train.py"]
    assert "functools" not in after["train.py"]
    twice = LOOKED_UP.replace("    model = FSDP", "    block = torch.nn.Linear\n    model = FSDP")
    after = analysed(tmp_path, {"train.py": twice, "model.py": MODEL}).after
    assert "fully_shard" not in after["train.py"]


TRAINER = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model, lr):
        self.model = FSDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)


def main():
    model = Net()
    trainer = Trainer(model, 0.1)
    trainer.optimizer.step()
"""
CHILD = """\
class Child(Trainer):
    def __init__(self, lr, model):
        super().__init__(model, lr)


class Grandchild(Child):
    pass


def main():
    model = Net()
    trainer = Grandchild(0.1, model)
    trainer.optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRAINER, "becomes fully_shard"),
        (TRAINER[: TRAINER.index("def main")] + CHILD, "becomes fully_shard"),
        (
            TRAINER.replace("    trainer =", "    sgd = SGD(model)\n    trainer ="),
            "may already hold",
        ),
        (TRAINER.replace("(model, 0.1)", "(**options)"), "comes from"),
        (TRAINER.replace("Trainer(model, 0.1)", "make(Trainer)"), "no caller"),
    ],
    ids=["a class", "classes below it", "an optimizer before", "unpacked", "never made here"],
)
def test_a_model_that_a_class_gets_when_it_is_made(
    text: str, expected: str, tmp_path: Path
) -> None:
    findings = analysed(tmp_path, {"train.py": text, "model.py": MODEL}).findings
    (found,) = [f for f in findings if f.code == "FSDP002"]
    assert expected in found.message


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [("use_orig_params=True", "becomes"), ("use_orig_params=keep", "may already hold")],
)
def test_an_older_optimizer_goes_along_where_its_parameters_were_kept(
    keeps: str, expected: str, tmp_path: Path
) -> None:
    optimizer = "    optimizer = torch.optim.AdamW(model.parameters())\n"
    text = TRAIN.replace(optimizer, "").replace("FSDP(model)", f"FSDP(model, {keeps})")
    text = text.replace("model = Net()\n", f"model = Net()\n    unsharded = 1\n{optimizer}")
    program = analysed(tmp_path, {"train.py": text, "model.py": MODEL})
    (found,) = [f for f in program.findings if f.code == "FSDP002"]
    assert expected in found.message
    assert ("replace_in_optimizers(unsharded_, model)" in program.after["train.py"]) is (
        expected == "becomes"
    )


TWO_WAYS = """\
import copy
import os
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDED = os.environ["WAY"] == "sharded"


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)


def main():
    model = Net()
    if SHARDED:
        model = FSDP(model)
    else:
        model = DDP(model)
    average = None if SHARDED else Average(model)
    train(model, average)
"""


@pytest.mark.parametrize(
    ("before", "after", "is_plain"),
    [
        ("", "", True),
        ("SHARDED else Average", "OTHER else Average", False),
        ("    else:\n", "    model = FSDP(Net())\n    if not SHARDED:\n", False),
        ("def main():\n", "def main(SHARDED):\n", False),
        ("class Average", "SHARDED = True\n\n\nclass Average", False),
        ("    train(", "    Average(model)\n    train(", False),
        ("    train(", "    train(Average, ", False),
    ],
    ids=["no", "a test", "a constructor", "a parameter", "a variable", "a call", "a use"],
)
def test_what_only_runs_where_no_model_is_wrapped_depends_on_nothing(
    before: str, after: str, is_plain: bool, tmp_path: Path
) -> None:
    text = TWO_WAYS.replace(before, after) if before else TWO_WAYS
    findings = analysed(tmp_path, {"train.py": text, "model.py": MODEL}).findings
    found = [f for f in findings if f.code == "FSDP002"]
    assert all(("copies a sharded model" not in f.message) is is_plain for f in found)
