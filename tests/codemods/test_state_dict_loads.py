"""State dicts and states of optimizers that are loaded."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed
from .state_dicts import FULL, HEADER

LOADS = {
    "model.load_state_dict(torch.load(path))": "model, torch.load(path), options=",
    "model.load_state_dict(state)": "model, dict(state), options=",
    "model.module.load_state_dict(states['model'], strict=False)": "strict=False",
    "missing, more = model.load_state_dict(state, strict)": "strict=strict",
}


@pytest.mark.parametrize("load", LOADS)
def test_a_load_is_as_strict_as_it_was(load: str, tmp_path: Path) -> None:
    text = (
        f"{HEADER}def load(model, path, state, states, strict):\n    with {FULL}:\n        {load}\n"
    )
    after = "".join(analysed(tmp_path, text, "torch").after["train.py"].split())
    assert LOADS[load].replace(" ", "") in after
    assert "broadcast_from_rank0=True" in after


LOADED = {
    "": "both['model']",
    "epoch = both['epoch'] if 'epoch' in both else 0": "both['model']",
    "epoch = both.get('epoch', 0)": "both['model']",
    "model2 = both.get('model')": "dict(both['model'])",
    "print(both['model'])": "dict(both['model'])",
    "print(both[name])": "dict(both['model'])",
    "print(len(both))": "dict(both['model'])",
}


@pytest.mark.parametrize("behind", LOADED)
def test_a_dictionary_that_is_used_again_is_copied(behind: str, tmp_path: Path) -> None:
    """Torch's function fills the dictionary that it is given with shards."""
    load = f"with {FULL}:\n        model.load_state_dict(both['model'])"
    text = f"{HEADER}def load(model, path, name):\n    both = torch.load(path)\n    {load}\n    {behind}\n"
    after = "".join(analysed(tmp_path, text, "torch").after["train.py"].split())
    assert f"set_model_state_dict(model,{LOADED[behind]},options" in after


BRANCHES = """\
def load(model, path, sharded):
    saved = torch.load(path)
    state = SAVED
    if sharded:
        with {full}:
            model.load_state_dict(state)
    else:
        model.module.load_state_dict(state)
    BEHIND
"""


@pytest.mark.parametrize(
    ("saved", "behind", "given"),
    [
        ("saved['model']", "return saved['epoch']", "state"),
        ("{k: v for k, v in saved.items()}", "return saved", "state"),
        ("saved['model']", "return state", "dict(state)"),
        ("saved['model']", "return saved", "dict(state)"),
        ("saved['model']", "return saved['model']", "dict(state)"),
    ],
)
def test_what_other_branches_load_is_not_used_again(
    saved: str, behind: str, given: str, tmp_path: Path
) -> None:
    text = BRANCHES.format(full=FULL).replace("SAVED", saved).replace("BEHIND", behind)
    after = "".join(analysed(tmp_path, f"{HEADER}{text}", "torch").after["train.py"].split())
    assert f"set_model_state_dict(model,{given},options" in after


LOAD = """\
def load(model, optimizer, states, whole):
    BEFORE
    states = FSDP.optim_state_dict_to_load(model, optimizer, states)
    BEHIND
"""
SET = (
    "options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)\n"
    "    set_optimizer_state_dict(model, optimizer, states, options=options)\n"
)


@pytest.mark.parametrize(
    ("behind", "wanted"),
    [
        ("optimizer.load_state_dict(states)", f"    {SET}"),
        ("assert states is not None\n    optimizer.load_state_dict(states)", f"    {SET}"),
        (
            "optimizer.load_state_dict(states)\n    return states",
            f"    {SET}    states = optimizer.state_dict()\n    optimizer.load_state_dict(states)\n    return states\n",
        ),
        ("return states", f"    {SET}    states = optimizer.state_dict()\n    return states\n"),
    ],
)
def test_states_are_loaded_once(behind: str, wanted: str, tmp_path: Path) -> None:
    text = HEADER + LOAD.replace("    BEFORE\n", "").replace("BEHIND", behind)
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.endswith(f"def load(model, optimizer, states, whole):\n{wanted}")


IN_A_BRANCH = f"""{HEADER}def load(model, optimizer, states, whole):
    if whole:
        states = FSDP.optim_state_dict_to_load(model, optimizer, states)
    REST
"""


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ("optimizer.load_state_dict(states)", "else:\n        optimizer.load_state_dict(states)\n"),
        (
            "\n    optimizer.load_state_dict(states)",
            "else:\n        optimizer.load_state_dict(states)\n",
        ),
        (
            "else:\n        states = torch.load(states)\n    optimizer.load_state_dict(states)",
            "else:\n        states = torch.load(states)\n        optimizer.load_state_dict(states)\n",
        ),
        (
            "else:\n        states = FSDP.flatten_sharded_optim_state_dict(states, model, optimizer)\n"
            "    optimizer.load_state_dict(states)",
            "else:\n        set_optimizer_state_dict(model, optimizer, states)\n",
        ),
        (
            "elif model:\n        states = None\n    optimizer.load_state_dict(states)",
            "    optimizer.load_state_dict(states)\n",
        ),
        ("# all\n    optimizer.load_state_dict(states)", "    optimizer.load_state_dict(states)\n"),
        ("optimizer.load_state_dict(states)\n    return states", "    return states\n"),
    ],
)
def test_a_load_of_both_branches_goes_to_the_other_one(
    rest: str, wanted: str, tmp_path: Path
) -> None:
    after = analysed(tmp_path, IN_A_BRANCH.replace("REST", rest), "torch").after["train.py"]
    assert after.endswith(wanted)
    is_loaded_again = "states = optimizer.state_dict()" in after
    assert is_loaded_again is ("else" not in wanted)


RESUME = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(model, sd, args):
    if args.fsdp:
        STATEMENT
    else:
        model.module.load_state_dict(sd)


model = FSDP(torch.nn.Linear(8, 8)OPTION)
resume(model, torch.load("model.pt"), args)
"""
WHOLE_OPTIONS = "StateDictOptions(full_state_dict=True,broadcast_from_rank0=True"
WRITTEN = "set_model_state_dict(model,dict(sd),options="


@pytest.mark.parametrize(
    ("load", "test", "wanted"),
    [
        ("model.load_state_dict(sd)", "args.fsdp", f"{WHOLE_OPTIONS})"),
        ("model.load_state_dict(sd, strict=False)", "args.fsdp", f"{WHOLE_OPTIONS},strict=False)"),
        ("print(model.load_state_dict(sd))", "isinstance(model, FSDP)", f"{WHOLE_OPTIONS})"),
        ("model.load_state_dict(sd, assign=True)", "args.fsdp", None),
        ("model.load_state_dict(sd)", "args.fsdp_amp", None),
        ("model.load_state_dict(sd)", "args.fsdp or args.ddp", None),
        ("load = model.load_state_dict", "args.fsdp", None),
    ],
)
def test_whole_tensors_are_loaded_where_a_test_says_that_the_model_is_sharded(
    load: str, test: str, wanted: str | None, tmp_path: Path
) -> None:
    text = RESUME.replace("STATEMENT", load).replace("args.fsdp:", f"{test}:").replace("OPTION", "")
    program = analysed(tmp_path, text, "torch")
    after = "".join(program.after["train.py"].split())
    (own,) = [each for each in program.findings if each.line == 7]
    if wanted is None:
        assert "set_model_state_dict" not in after
        assert own.severity is Severity.RAISES
    else:
        assert wanted in after
        assert WRITTEN in after
        assert own.action is Action.REWRITE


def test_whole_tensors_on_the_device_beside_offloaded_parameters_need_the_user(
    tmp_path: Path,
) -> None:
    text = RESUME.replace("STATEMENT", "model.load_state_dict(sd)")
    text = text.replace("OPTION", ", cpu_offload=CPUOffload(True)")
    text = text.replace("import Fully", "import CPUOffload, Fully")
    program = analysed(tmp_path, text, "torch")
    assert WRITTEN in "".join(program.after["train.py"].split())
    (own,) = [each for each in program.findings if each.code == "FSDP331"]
    assert own.action is Action.MANUAL
    assert "buffers" in own.message


@pytest.mark.parametrize(
    "around",
    [
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        ",
        "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n    ",
    ],
)
def test_states_that_are_loaded_where_they_are_made_need_nobody(
    around: str, tmp_path: Path
) -> None:
    load = "optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))"
    text = f"{HEADER}def load(model, optimizer, states):\n    {around}{load}\n"
    program = analysed(tmp_path, text, "torch")
    assert "set_optimizer_state_dict(" in program.after["train.py"]
    assert "FSDP." not in program.after["train.py"]
    assert not [each for each in program.findings if each.action is Action.MANUAL]


SCATTERED = """\
def load(model, optimizer, saved, optim_input):
    states = FSDP.{function}(saved, model)
    {behind}
"""


@pytest.mark.parametrize(
    "function",
    [
        "scatter_full_optim_state_dict",
        "shard_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
    ],
)
def test_the_optimizer_is_the_one_that_gets_the_result(function: str, tmp_path: Path) -> None:
    """Torch's older functions took no optimizer."""
    text = SCATTERED.format(function=function, behind="optimizer.load_state_dict(states)")
    result = analysed(tmp_path, f"{HEADER}{text}", "torch")
    after = "".join(result.after["train.py"].split())
    assert "set_optimizer_state_dict(model,optimizer,saved" in after
    assert "load_state_dict(states)" not in after
    assert function not in after
    assert "FSDP335" in result.codes(f"FSDP.{function}")


@pytest.mark.parametrize(
    "behind",
    [
        "return states",
        "optimizer = make(model)\n    optimizer.load_state_dict(states)",
        "self.optimizer = make(model)\n    self.optimizer.load_state_dict(states)",
        "make(model).load_state_dict(states)",
    ],
)
def test_without_an_optimizer_the_call_is_left(behind: str, tmp_path: Path) -> None:
    text = SCATTERED.format(function="scatter_full_optim_state_dict", behind=behind)
    result = analysed(tmp_path, f"{HEADER}{text}", "torch")
    assert result.is_kept("FSDP.scatter_full_optim_state_dict")
