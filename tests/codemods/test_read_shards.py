"""`load_sharded_optimizer_state_dict`: the states of FSDP2's optimizer are filled from the checkpoint."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed

IMPORTS = """\
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
"""
READ = 'saved = load_sharded_optimizer_state_dict(model.state_dict(), "optimizer", reader)\n'
LOADED = """\
    states = FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
    optimizer.load_state_dict(states)
"""
CONTEXT = "    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n        "
# How a file calls the function that fills a state dict.
LOADS = {
    "import torch.distributed.checkpoint as dcp\n": "dcp.load",
    "from torch.distributed import checkpoint as dist_cp\n": "dist_cp.load",
    "from torch.distributed.checkpoint import load\n": "load",
    "from torch.distributed.checkpoint import load_state_dict\n": "load_state_dict",
    "from torch.distributed._shard.checkpoint import load_state_dict as fill\n": "fill",
}


def _function(read: str, loaded: str = LOADED) -> str:
    return f"\n\ndef resume(model, optimizer, reader):\n{read}{loaded}"


@pytest.mark.parametrize("above", LOADS)
@pytest.mark.parametrize("context", [CONTEXT, "    "], ids=["context", "no context"])
@pytest.mark.parametrize("indent", ["", "    "], ids=["behind", "inside"])
def test_states_are_filled_where_they_were_read(
    above: str, context: str, indent: str, tmp_path: Path
) -> None:
    loaded = LOADED
    if context == CONTEXT:
        loaded = loaded.replace("    states", f"{indent}    states", 1)
    program = analysed(tmp_path, above + IMPORTS + _function(context + READ, loaded), "torch")
    body = program.after["train.py"].partition("reader):\n")[2]
    assert body == (
        '    saved = {"optimizer": get_optimizer_state_dict(model, optimizer)}\n'
        f"    {LOADS[above]}(saved, storage_reader=reader)\n"
        '    set_optimizer_state_dict(model, optimizer, saved["optimizer"])\n'
    )
    assert "load_sharded" not in program.after["train.py"]
    assert not [each for each in program.findings if each.action is Action.MANUAL]


def test_a_planner_is_given_on(tmp_path: Path) -> None:
    read = READ.replace("reader)", "storage_reader=reader, planner=Planner())")
    above = "import torch.distributed.checkpoint as dcp\n"
    program = analysed(tmp_path, above + IMPORTS + _function(CONTEXT + read), "torch")
    assert (
        "dcp.load(saved, storage_reader=reader, planner=Planner())\n" in program.after["train.py"]
    )


# What is not known well enough: the file, the call, and what it loads into.
LEFT = {
    "no function that fills": ("", READ, LOADED),
    "other arguments": ("", READ.replace("reader)", "reader, **more)"), LOADED),
    "another optimizer in between": ("", READ, f"    optimizer = make(model)\n{LOADED}"),
    "more than one name": ("", READ.replace("saved =", "kept = saved ="), LOADED),
    "comments": ("", READ.replace("reader)", "reader,  # here\n        )"), LOADED),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_raises_in_the_next_step(case: str, tmp_path: Path) -> None:
    """Run on two ranks: the optimizer takes such tensors, and its next step raises."""
    above, read, loaded = LEFT[case]
    if case != "no function that fills":
        above = "import torch.distributed.checkpoint as dcp\n"
    program = analysed(tmp_path, above + IMPORTS + _function(CONTEXT + read, loaded), "torch")
    after = program.after["train.py"]
    assert "load_sharded_optimizer_state_dict(" in after
    assert 'set_optimizer_state_dict(model, optimizer, saved["optimizer"])\n' in after
    (own,) = [each for each in program.findings if "load_sharded" in each.message]
    assert (own.action, own.severity) == (Action.MANUAL, Severity.RAISES)


def test_the_default_form_keeps_it(tmp_path: Path) -> None:
    above = "import torch.distributed.checkpoint as dcp\n"
    program = analysed(tmp_path, above + IMPORTS + _function(CONTEXT + READ), "auto")
    assert "load_sharded_optimizer_state_dict(" in program.after["train.py"]
