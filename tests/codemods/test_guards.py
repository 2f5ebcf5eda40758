"""Guards that tell FSDP1's wrappers from the modules in them."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import analysed

OVERLAP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    for module in model.modules():
        if not isinstance(module, FSDP):
            for name, child in module.named_children():
                wrapped = FSDP(
                    child,
                )
                keep(wrapped)
"""
# By what is walked: whether the guard met a wrapper and the module in it, and is always false in place.
WALKED = {
    "model.modules()": True,
    "list(model.modules())[1:]": True,
    "reversed(list(model.modules()))": True,
    "dict(model.named_modules()).values()": True,
    "every": True,
    "given": True,
    "self.found": True,
    "[m for m in model.modules() if m.training]": True,
    "modules": True,
    "model.children()": False,
    "model.blocks": False,
    "[model, model.head]": False,
    "FSDP.fsdp_modules(model)": False,
    "blocks": False,
}
WALK = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.found = list(model.modules())

    def reset(self, model, given, modules):
        every = [*model.modules()]
        blocks = model.blocks
        for m in WALKED:
            if isinstance(m, FSDP):
                continue
            m.reset_all()


def main(trainer, model):
    trainer.reset(model, model.modules(), something())
"""


@pytest.mark.parametrize(("walked", "met_both"), WALKED.items())
@pytest.mark.parametrize("form", ["auto", "torch"])
def test_which_walks_meet_both(walked: str, met_both: bool, form: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, WALK.replace("WALKED", walked), form)
    after = program.after["train.py"]
    assert ("isinstance(m, FSDPModule)" in after) == (not met_both)
    assert ("continue" in after) == (not met_both)
    compile(after, "train.py", "exec")


def test_a_method_of_the_model_is_no_recursion(tmp_path: Path) -> None:
    program = analysed(
        tmp_path,
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


        def train(model):
            model.train()
            save(model)


        def save(model):
            if not isinstance(model, FSDP):
                print(model)
                return
            print(model.state_dict())


        def main(net):
            model = FSDP(net)
            train(model)
        """,
    )
    assert not [f for f in program.findings if f.action is Action.MANUAL]
    assert "if not isinstance(model, FSDPModule):" in program.after["train.py"]


def test_an_edit_that_another_one_is_in_the_way_of_is_for_a_person(tmp_path: Path) -> None:
    """Left as it is the test would be true of a unit, and its module would be left out."""
    program = analysed(tmp_path, OVERLAP)
    found = {f.action for f in program.findings if f.code == "FSDP007" and f.line == 6}
    assert found == {Action.MANUAL}
    assert "fully_shard(child)" in program.after["train.py"]
