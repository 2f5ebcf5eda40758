"""Programs of several files: constructors and uses together, whatever the form."""

import gc
from pathlib import Path
from textwrap import indent

import pytest

from fsdp_migrate.engine import analyse
from fsdp_migrate.facts.program import Program
from fsdp_migrate.settings import Options

from .programs import MODEL, TRAIN, analysed, is_plain


@pytest.mark.parametrize("imported", [True, False])
def test_a_model_on_meta_in_a_file_without_fsdp(imported: bool, tmp_path: Path) -> None:
    """The runtime gives it memory; what nothing connects with the constructor does not count."""
    helper = (
        "import torch\n\n\ndef empty(cls):\n    with torch.device('meta'):\n        return cls()\n"
    )
    made = TRAIN.replace("Net()", "empty(Net)")
    text = f"from helper import empty\n{made}" if imported else TRAIN
    files = {"train.py": text, "model.py": MODEL, "helper.py": helper}
    after = analysed(tmp_path, files).after["train.py"]
    assert ("in units(model):" in after) is imported


META = {
    "device = 'meta' if rank else 'cuda'\nmodel = Net(device=device)": True,
    "model = Net(device='meta')": True,
    "model = Net()\nmodel.to('meta')": True,
    "model = Net().to('meta' if rank else 'cuda')": True,
    "with init_empty_weights():\n    model = Net()": True,
    "lazy = init_empty_weights if rank else nullcontext\nwith lazy(), timer():\n    model = Net()": True,
    "with torch.device('meta'):\n    other = Part()": False,
    "other = Part(device='meta')": False,
    "model = Net(info={'meta': batch['meta']}, meta=batch['meta'] == 'meta')": False,
    "model = Net.from_pretrained('meta-llama/Llama-2-7b-hf')": False,
    "empty = device == 'meta' or p.device == torch.device('meta') or p.device.type in ('cuda', 'meta')": False,
}


@pytest.mark.parametrize("line", META)
def test_what_makes_a_model_on_meta(line: str, tmp_path: Path) -> None:
    made = line if "model = Net" in line else f"{line}\nmodel = Net()"
    text = TRAIN.replace("    model = Net()\n", indent(made, "    ") + "\n")
    files = {"train.py": text, "model.py": MODEL}
    assert ("in units(model):" in analysed(tmp_path, files).after["train.py"]) is META[line]


USES = """\


def train(model: FSDP, optimizer):
    assert isinstance(model, FSDP)
    with model.no_sync():
        model(1).backward()
    model.clip_grad_norm_(1.0)
    with FSDP.summon_full_params(model):
        print(model.module)
"""
# What becomes of them, by form.
BECOME = {
    "auto": """\


def train(model: torch.nn.Module, optimizer):
    assert isinstance(model, FSDPModule)
    with model.no_sync():
        model(1).backward()
    model.clip_grad_norm_(1.0)
    with summon_full_params(model):
        print(model.module)
""",
    "torch": """\


def train(model: torch.nn.Module, optimizer):
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    model(1).backward()
    model.set_requires_gradient_sync(True)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with FSDP.summon_full_params(model):
        print(model)
""",
    "bridge": USES,
}


@pytest.mark.parametrize("form", BECOME)
@pytest.mark.parametrize("given", ["", ", **options"])
def test_uses_in_each_form(form: str, given: str, tmp_path: Path) -> None:
    """They do not depend on what the constructor is given."""
    text = TRAIN.replace("FSDP(model)", f"FSDP(model{given})") + USES
    after = analysed(tmp_path, {"train.py": text, "model.py": MODEL}, form).after
    assert after["train.py"].endswith(BECOME[form])


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_program_on_the_bridge_goes_on_from_there(form: str, tmp_path: Path) -> None:
    files = {"train.py": TRAIN + USES, "model.py": MODEL}
    bridge = analysed(tmp_path / "first", files, "bridge").after
    at_once = analysed(tmp_path / "at_once", files, form).after
    assert analysed(tmp_path / "then", bridge, form).after == at_once


@pytest.mark.parametrize("text", ['print("FSDP")', 'mode == "FSDP"', 'x: Literal["FSDP"] = y'])
def test_text_that_reads_like_the_class_stays(tmp_path: Path, text: str) -> None:
    after = _beside(tmp_path, text)
    assert is_plain(after)
    assert text in after


def test_the_class_in_quotes_is_an_annotation(tmp_path: Path) -> None:
    after = _beside(tmp_path, 'y: "FSDP" = model')
    assert is_plain(after)
    assert 'y: "torch.nn.Module" = model' in after


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


def main(args):
    model = FSDP(
        Net()
        .eval()
        .train(),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        cpu_offload=CPUOffload(
            offload_params=True
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
        "        fully_shard(model, offload_policy=CPUOffloadPolicy())\n"
        in program.after["train.py"]
    )


AUTO = """\
import torch
from contextlib import nullcontext
from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp import fully_shard
from fsdp_migrate.runtime import like_fsdp1, local_shard, summon_full_params

from model import Net


def main(more):
    model = Net()
    with like_fsdp1(model):
        fully_shard(model)
    with model.no_sync() if more else nullcontext():
        model(1).backward()
    norm = model.clip_grad_norm_(1.0)
    print(norm, model.module.head, local_shard(model.head.weight))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    with summon_full_params(model):
        model.generate(1)
    return state
"""
TORCH = """\
    model.set_requires_gradient_sync(not more)
    model(1).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    print(norm, model.head, model.head.weight.to_local())
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    model.generate(1)
    return state
"""


def test_what_was_rewritten_by_default_becomes_torchs(tmp_path: Path) -> None:
    """The uses; the constructor and the line with like_fsdp1 are another rule's."""
    after = analysed(tmp_path, {"train.py": AUTO, "model.py": MODEL}, "torch").after["train.py"]
    assert after.endswith(TORCH)
    ours = [line for line in after.splitlines() if "fsdp_migrate" in line]
    assert ours in ([], ["from fsdp_migrate.runtime import like_fsdp1"])
    assert after.count("from torch.distributed.fsdp import") == 1


GROWING = """\
from typing import Union
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def build(self, net: torch.nn.Module) -> Union[torch.nn.Module, FSDP]:
        self.the_model_that_is_trained = FSDP(net)

    def clip(self):
        norm = self.the_model_that_is_trained.clip_grad_norm_(self.limit_of_the_norm)
        return norm
"""
GROWN = """\
        norm = torch.nn.utils.clip_grad_norm_(
            self.the_model_that_is_trained.parameters(), self.limit_of_the_norm
        ).full_tensor()
        return norm
"""


def test_a_call_that_grows_too_long_goes_over_several_lines(tmp_path: Path) -> None:
    after = analysed(tmp_path, GROWING, "torch").after["train.py"]
    assert after.endswith(GROWN)
    assert "-> torch.nn.Module:" in after


UNMOVED = """\
import functools

from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
"""


@pytest.mark.parametrize("form", ["auto", "torch", "bridge"])
def test_no_file_changes_for_the_import_of_a_policy(form: str, tmp_path: Path) -> None:
    after = analysed(tmp_path, UNMOVED, form).after["train.py"]
    assert (after == UNMOVED) is (form != "bridge")
