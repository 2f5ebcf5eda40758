"""Types of state dicts, beyond the examples of their rules."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed

HEADER = """\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,  # noqa: F401
    FullyShardedDataParallel as FSDP,
    StateDictType,  # noqa: F401
)


"""
FULL = "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))"


@pytest.mark.parametrize(
    "statement",
    [
        f"context = {FULL}",
        f"with {FULL}:\n        trainer.state = trainer.save()",
        f"with {FULL}:\n        state = model.state_dict()\n    with {FULL}:\n        trainer.save()",
        f"with {FULL.replace('(True, True)', '(True)')}:\n        state = model.state_dict()",
        f"with {FULL.replace('FULL_', 'SHARDED_')}:\n        state = model.state_dict()",
        f"with {FULL}:\n        model.load_state_dict(state)",
        f"with {FULL}:\n        state = FSDP.optim_state_dict(model, optimizer)",
        f"with torch.no_grad(), {FULL} as before:\n        state = model.state_dict()",
        "with FSDP.state_dict_type(model, **trainer.types):\n        state = model.state_dict()",
    ],
)
def test_only_the_imports_change(statement: str, tmp_path: Path) -> None:
    text = f"{HEADER}def save(model, trainer):\n    {statement}\n"
    program = analysed(tmp_path, text)
    wanted = text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
    assert program.after["train.py"] == wanted
    assert "FSDP331" in program.codes("FSDP.state_dict_type")


@pytest.mark.parametrize(
    "statement",
    [
        f"context = {FULL}",
        f"with {FULL}:\n        trainer.state = trainer.save()",
        f"with torch.no_grad(), {FULL} as before:\n        state = model.state_dict()",
        "with FSDP.state_dict_type(model, **trainer.types):\n        state = model.state_dict()",
        f"with {FULL}:\n        state = model.state_dict(keep_vars=True)",
        f"with {FULL}:\n        ask = model.state_dict",
        f"with {FULL}:\n        state = FSDP.rekey_optim_state_dict(state, kind, model)",
        f"with {FULL}:\n        model.load_state_dict(state, assign=True)",
    ],
)
def test_what_torchs_functions_do_not_say_needs_you(statement: str, tmp_path: Path) -> None:
    text = f"{HEADER}def save(model, trainer, state, kind):\n    {statement}\n"
    program = analysed(tmp_path, text, "torch")
    assert program.is_kept("FSDP.state_dict_type")
    assert "fsdp_migrate" not in program.after["train.py"]
    found = [f for f in program.findings if f.code == "FSDP331"]
    assert [f.action.value for f in found] == ["manual"]


OPTIONS = {
    "FullStateDictConfig(True, True)": "full_state_dict=True, cpu_offload=True",
    "FullStateDictConfig(rank0_only=True)": "full_state_dict=True, cpu_offload=True",
    "FullStateDictConfig(True, trainer.alone)": "full_state_dict=True, cpu_offload=trainer.alone",
    "FullStateDictConfig(offload, True)": "full_state_dict=True, cpu_offload=offload",
    "FullStateDictConfig(True)": "full_state_dict=True",
    "None": "full_state_dict=True",
    "trainer.config": "full_state_dict=True, cpu_offload=trainer.config.rank0_only",
}


@pytest.mark.parametrize("config", OPTIONS)
def test_each_flag_is_translated_by_its_expression(config: str, tmp_path: Path) -> None:
    context = FULL.replace("FullStateDictConfig(True, True)", config)
    text = f"{HEADER}def save(model, trainer, offload):\n    with {context}:\n        return model.state_dict()\n"
    after = "".join(analysed(tmp_path, text, "torch").after["train.py"].split())
    assert f"StateDictOptions({OPTIONS[config]}".replace(" ", "") in after


@pytest.mark.parametrize(
    ("use", "options", "is_said"),
    [
        ("if rank == 0:\n            torch.save(state, 'f')", "cpu_offload=True)", False),
        ("torch.save(state, 'f')", "cpu_offload=alone)", True),
        ("if trainer.should_save:\n            trainer.save(state)", "cpu_offload=True)", False),
    ],
)
def test_a_flag_for_rank_0_offloads_what_one_rank_uses(
    use: str, options: str, is_said: bool, tmp_path: Path
) -> None:
    context = FULL.replace("(True, True)", "(True, alone)")
    head = f"{HEADER}def save(model, rank, trainer, alone):\n"
    text = f"{head}    with {context}:\n        state = model.state_dict()\n        {use}\n"
    program = analysed(tmp_path, text, "torch")
    assert options in "".join(program.after["train.py"].split("\n"))
    messages = [each.message for each in program.findings if each.code == "FSDP331"]
    assert any("If `alone` is false" in each for each in messages) is is_said


KINDS = {
    "StateDictType.FULL_STATE_DICT if whole else StateDictType.SHARDED_STATE_DICT": "=whole)",
    "StateDictType.SHARDED_STATE_DICT if not whole else StateDictType.FULL_STATE_DICT": "=whole)",
    "StateDictType.SHARDED_STATE_DICT if n == 1 else StateDictType.FULL_STATE_DICT": "=n != 1)",
    "trainer.kind": "=trainer.kind == StateDictType.FULL_STATE_DICT)",
    "StateDictType.SHARDED_STATE_DICT": "get_model_state_dict(model)",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_named", [False, True])
def test_a_type_is_translated_by_its_expression(kind: str, is_named: bool, tmp_path: Path) -> None:
    lines = [f"    kind = {kind}"] * is_named
    lines += [f"    with FSDP.state_dict_type(model, {'kind' if is_named else kind}):"]
    lines += ["        return model.state_dict()"]
    text = f"{HEADER}def save(model, trainer, whole, n):\n" + "\n".join(lines) + "\n"
    after = analysed(tmp_path, text, "torch").after["train.py"]
    named = is_named and kind == "trainer.kind"
    wanted = KINDS[kind].replace("=trainer.kind", "=kind") if named else KINDS[kind]
    assert wanted.replace(" ", "") in "".join(after.split())


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


def test_a_program_with_models_side_by_side_gives_every_rank_its_own(tmp_path: Path) -> None:
    """Torch gives whole tensors on the CPU to rank 0 of all, and sends rank 0's to all."""
    text = f"{HEADER}net = FSDP(net, process_group=model_parallel.group())\n{SAVING}"
    program = analysed(tmp_path, text, "torch")
    assert "options=StateDictOptions(full_state_dict=True)" in program.after["train.py"]
    assert any("whole tensors on its own device" in each.message for each in program.findings)
    load = text.replace("state = model.state_dict()", "state = model.load_state_dict(old)")
    assert analysed(tmp_path, load, "torch").is_kept("with FSDP.state_dict_type")


SAVING = (
    f"def save(model):\n    with {FULL}:\n        state = model.state_dict()\n    return state\n"
)


@pytest.mark.parametrize("form", ["auto", "torch", "bridge"])
def test_saving_from_rank_0(form: str, tmp_path: Path) -> None:
    text = f"policy = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)\n{SAVING}"
    text = HEADER + text.replace("FullStateDictConfig(True, True)", "policy")
    after = analysed(tmp_path, text, form).after["train.py"]
    is_rewritten = form != "bridge"
    assert ("state = get_model_state_dict(model, options=policy)" in after) == is_rewritten
    options = "policy = StateDictOptions(full_state_dict=True, cpu_offload=True)"
    assert (options in after) == is_rewritten
    assert ("state_dict_type" in after) == ("FullStateDictConfig" in after) == (not is_rewritten)


@pytest.mark.parametrize(
    "other",
    [
        "net = FSDP(net, process_group=group)",
        "net = FSDP(net, group)",
        "net = FSDP(net, device_mesh=mesh)",
        'kind = "HYBRID_SHARD"',
        "net.register_state_dict_post_hook(rename)",
        "net = torch.compile(net)",
        "def get_extra_state(self): return Statistics(self)",
    ],
)
def test_another_file_has_a_say(other: str, tmp_path: Path) -> None:
    for line, stays in ((other, True), ("net = FSDP(net)", False)):
        texts = {"train.py": f"import build\n{HEADER}{SAVING}", "build.py": f"{HEADER}{line}\n"}
        program = analysed(tmp_path, texts)
        assert program.is_kept("with FSDP.state_dict_type") is stays


def test_a_module_in_a_file_without_fsdp_has_a_say(tmp_path: Path) -> None:
    module = "class Net(nn.Module):\n    def _save_to_state_dict(self, states, *_): ...\n"
    for model, stays in ((module, True), ("class Net(nn.Module): ...\n", False)):
        texts = {"train.py": f"import model\n{HEADER}{SAVING}", "model.py": model}
        assert analysed(tmp_path, texts).is_kept("with FSDP.state_dict_type") is stays


def test_a_configuration_that_changes_or_is_read_stays(tmp_path: Path) -> None:
    text = f"{HEADER}policy = FullStateDictConfig(True, True)\n{SAVING}"
    text = text.replace(
        "FULL_STATE_DICT, FullStateDictConfig(True, True)", "FULL_STATE_DICT, policy"
    )
    read = analysed(tmp_path, f"{text}print(policy)\n")
    assert "get_model_state_dict" in read.after["train.py"]
    assert read.is_kept("policy = ")
    changed = analysed(tmp_path, f"{text}policy.rank0_only = False\n")
    assert changed.is_kept("with FSDP.state_dict_type")
    assert changed.is_kept("policy = ")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("torch.save(optimizer.state_dict(), rank)", {"FSDP331"}),
        ("torch.save(model.state_dict(), rank)", {"FSDP331", "FSDP334"}),
        ("trainer.save(rank)", {"FSDP334"}),
    ],
)
def test_a_local_type_around_nothing_of_the_model_does_not_raise(
    body: str, code: set[str], tmp_path: Path
) -> None:
    context = "with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):"
    text = f"{HEADER}model = FSDP(net)\n{context}\n    {body}\n"
    found = analysed(tmp_path, text)
    assert found.codes("with") == code
    raising = [
        f
        for f in found.findings
        if f.message.startswith("This raises for LOCAL_STATE_DICT, because")
    ]
    assert len(raising) == (code == {"FSDP334"})


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "LOCAL_STATE_DICT", "FULL_STATE_DICT"])
def test_shards_that_other_code_asks_for_need_no_context(kind: str, tmp_path: Path) -> None:
    context = f"with FSDP.state_dict_type(model, StateDictType.{kind}):"
    text = f"{HEADER}def save(model, trainer, rank):\n    {context}\n        trainer.save(rank)\n"
    program = analysed(tmp_path, text, "torch")
    is_whole = kind == "FULL_STATE_DICT"
    assert program.is_kept(context) is is_whole
    assert ("\n    trainer.save(rank)\n" in program.after["train.py"]) is not is_whole
    wanted = {"FULL_STATE_DICT": {"FSDP331"}, "LOCAL_STATE_DICT": {"FSDP331", "FSDP334"}}
    assert program.codes("with") - {"FSDP022"} == wanted.get(kind, {"FSDP331"})


def test_a_configuration_of_shards_becomes_no_option_that_nobody_asked_for(tmp_path: Path) -> None:
    context = "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT"
    body = "return model.state_dict(), FSDP.optim_state_dict(model, optimizer)"
    ends = {
        "):": "get_optimizer_state_dict(model, optimizer)",
        ", ShardedStateDictConfig(True)):": "get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))",
        ", None, ShardedOptimStateDictConfig()):": (
            "get_optimizer_state_dict(model, optimizer, options=StateDictOptions(cpu_offload=True))"
        ),
        ", None, ShardedOptimStateDictConfig(False)):": "get_optimizer_state_dict(model, optimizer)",
    }
    names = (
        "from torch.distributed.fsdp import ShardedOptimStateDictConfig, ShardedStateDictConfig\n"
    )
    for end, wanted in ends.items():
        text = f"{names}{HEADER}def save(model, optimizer):\n    {context}{end}\n        {body}\n"
        after = "".join(analysed(tmp_path, text, "torch").after["train.py"].split())
        assert wanted.replace(" ", "") in after


def test_options_that_a_block_repeats_are_written_once(tmp_path: Path) -> None:
    body = "a = model.state_dict()\n        b = FSDP.optim_state_dict(model, o)"
    text = f"{HEADER}def save(model, o):\n    with {FULL}:\n        {body}\n    return a, b\n"
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.endswith(
        "def save(model, o):\n"
        "    options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
        "    a = get_model_state_dict(model, options=options)\n"
        "    b = get_optimizer_state_dict(model, o, options=options)\n"
        "    return a, b\n"
    )
    taken = text.replace("(model, o):", "(model, o, options):")
    assert (
        "    options_ = StateDictOptions(" in analysed(tmp_path, taken, "torch").after["train.py"]
    )


POLICY = f"""{HEADER}def save(model, other):
    policy = FullStateDictConfig(True, True)
    with {FULL.replace("FullStateDictConfig(True, True)", "policy")}:
        state = model.state_dict()
    ANOTHER
    return state
"""


@pytest.mark.parametrize(
    ("another", "becomes_options"),
    [
        ("pass", True),
        (
            "policy = FullStateDictConfig(True, True)\n"
            "    with FSDP.state_dict_type(other, StateDictType.FULL_STATE_DICT, policy):\n"
            "        more = other.state_dict()",
            True,
        ),
        ("print(policy)", False),
        ("policy = other.policy", False),
        (
            "with FSDP.state_dict_type(other, StateDictType.SHARDED_STATE_DICT, policy):\n"
            "        more = other.state_dict()",
            False,
        ),
        (
            "with FSDP.state_dict_type(other, StateDictType.FULL_STATE_DICT, policy):\n"
            "        other.save()",
            False,
        ),
    ],
)
def test_a_configuration_that_blocks_alone_read_becomes_their_options(
    another: str, becomes_options: bool, tmp_path: Path
) -> None:
    after = analysed(tmp_path, POLICY.replace("ANOTHER", another), "torch").after["train.py"]
    options = "    policy = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
    assert (options in after) is becomes_options
    assert ("state = get_model_state_dict(model, options=policy)" in after) is becomes_options


def test_a_name_that_the_file_has_for_something_else_is_imported_under_another(
    tmp_path: Path,
) -> None:
    own = "def get_model_state_dict(model):\n    return model\n\n\n"
    after = analysed(tmp_path, f"{HEADER}{own}{SAVING}", "torch").after["train.py"]
    assert "get_model_state_dict as torch_get_model_state_dict" in after
    assert "state = torch_get_model_state_dict(" in after


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


@pytest.mark.parametrize("name", ["state_dict_type", "set_state_dict_type"])
def test_local_state_dict_is_for_a_person_once(name: str, tmp_path: Path) -> None:
    call = f"FSDP.{name}(model, state_dict_type=StateDictType.LOCAL_STATE_DICT)"
    program = analysed(tmp_path, f"{HEADER}trainer.enter({call})\n")
    found = [f for f in program.findings if f.code.startswith("FSDP33")]
    assert [(f.code, f.action.value) for f in found] == [("FSDP334", "manual")]


SET = f"""{HEADER}
def build(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return model
"""
SAVE = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from build import build

model = build(net)
with {FULL}:
    whole = model.state_dict()
torch.save(optimizer.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ("", False),
        ("model.load_state_dict(old)\n", True),
        ("FSDP.optim_state_dict(model, o)\n", True),
    ],
)
def test_a_local_type_that_applies_to_no_state_dict_does_not_raise(
    more: str, reported: bool, tmp_path: Path
) -> None:
    found = analysed(tmp_path, {"build.py": SET, "train.py": SAVE + more})
    assert found.codes("set_state_dict_type", "build.py") == {"FSDP334" if reported else "FSDP332"}


def test_a_local_type_does_not_apply_to_another_program(tmp_path: Path) -> None:
    other = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP.optim_state_dict(model, o)\n"
    found = analysed(tmp_path, {"build.py": SET, "train.py": SAVE, "other/main.py": other})
    assert found.codes("set_state_dict_type", "build.py") == {"FSDP332"}


@pytest.mark.parametrize(
    "statement",
    [
        "self.optimizer.load_state_dict(state)",
        "self.train_dataloader.load_state_dict(state)",
        "metrics.load_state_dict(callback.state_dict())",
        "scheduler.load_state_dict(state['scheduler'])",
        "state = self.model.state_dict()",
        "plugin.set_state_dict_type('FULL_STATE_DICT')",
        "kind = config.state_dict_type",
    ],
)
def test_nothing_is_said_of_other_state_dicts(statement: str, tmp_path: Path) -> None:
    text = f"{HEADER}class Trainer:\n    def run(self):\n        {statement}\n"
    assert not [f for f in analysed(tmp_path, text).findings if f.code.startswith("FSDP33")]


FOR_GOOD = f"""{HEADER}def save(model, other, optimizer, whole):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))
    BELOW


MORE
"""
GET = (
    "get_model_state_dict(\n        model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)\n    )"
)


@pytest.mark.parametrize(
    ("below", "wanted"),
    [
        ("return model.state_dict()", f"    return {GET}\n"),
        (
            "if whole:\n        state = model.state_dict()",
            "        state = get_model_state_dict(\n",
        ),
        (
            "model.load_state_dict(torch.load('x'))",
            "    set_model_state_dict(model, torch.load('x'), options=options)\n",
        ),
        ("save_whole(model)", "    save_whole(model)\n"),
        ("state = other.state_dict()", "    state = other.state_dict()\n"),
        (
            "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n    s = model.state_dict()",
            "    s = model.state_dict()\n",
        ),
    ],
)
def test_a_type_for_good_becomes_options_where_its_function_asks(
    below: str, wanted: str, tmp_path: Path
) -> None:
    program = analysed(tmp_path, FOR_GOOD.replace("BELOW", below).replace("MORE", ""), "torch")
    after = program.after["train.py"]
    assert wanted in after
    asks = "model_state_dict(" in wanted
    assert ("StateDictType.FULL_STATE_DICT" not in after) is asks
    assert program.codes("FSDP.set_state_dict_type") == {"FSDP332"}


def test_a_type_for_good_that_a_branch_changes_needs_you(tmp_path: Path) -> None:
    below = (
        "if whole:\n        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        "    state = model.state_dict()"
    )
    text = FOR_GOOD.replace("BELOW", below).replace("MORE", "")
    program = analysed(tmp_path, text, "torch")
    assert program.is_kept("state = model.state_dict()")
    found = [f for f in program.findings if f.code == "FSDP332" and f.line == 10]
    assert [f.action.value for f in found] == ["manual"]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_code_elsewhere_that_asks_for_a_state_dict_is_named(
    elsewhere: bool, tmp_path: Path
) -> None:
    more = "model = FSDP(net)\nsave(model, 0, 0, 0)\n"
    more += "print(model.state_dict())\n" if elsewhere else ""
    text = FOR_GOOD.replace("BELOW", "return model.state_dict()").replace("MORE", more)
    program = analysed(tmp_path, text, "torch")
    (found,) = [f for f in program.findings if f.code == "FSDP332" and "set_state" in f.construct]
    assert found.action.value == ("manual" if elsewhere else "rewrite")
    assert ("Other code" in found.message) is elsewhere
    assert f"    return {GET}\n" in program.after["train.py"]


@pytest.mark.parametrize(
    ("build", "are_split"),
    [
        ("net = FSDP(net, process_group=model_parallel.group())", True),
        ("net = FSDP(net, process_group=group)\nrank = mpu.get_data_parallel_rank()", True),
        ("net = FSDP(net, device_mesh=mesh['dp'])\nstages = pipeline_parallel(net)", True),
        ("net = FSDP(net, process_group=tensor_parallel_group)", True),
        ("net = FSDP(parallelize_module(net, mesh), process_group=tensor_parallel_group)", False),
        ("net = FSDP(net)\nsize = config.tensor_parallel_size", False),
        ("net = FSDP(net, device_mesh=mesh)\nsize = rollout.tensor_model_parallel_size", False),
        ("net = FSDP(net, process_group=group)", False),
    ],
)
def test_models_are_side_by_side_where_a_constructor_has_a_group_of_them(
    build: str, are_split: bool, tmp_path: Path
) -> None:
    after = analysed(tmp_path, f"{HEADER}{build}\n{SAVING}", "torch").after["train.py"]
    assert ("cpu_offload=True" not in after) is are_split


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
