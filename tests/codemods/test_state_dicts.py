"""Types of state dicts, beyond the examples of their rules."""

from pathlib import Path

import pytest

from .programs import analysed
from .state_dicts import FULL, HEADER, SAVING


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


def test_a_program_with_models_side_by_side_gives_every_rank_its_own(tmp_path: Path) -> None:
    """Torch gives whole tensors on the CPU to rank 0 of all, and sends rank 0's to all."""
    text = f"{HEADER}net = FSDP(net, process_group=model_parallel.group())\n{SAVING}"
    program = analysed(tmp_path, text, "torch")
    assert "options=StateDictOptions(full_state_dict=True)" in program.after["train.py"]
    assert any("whole tensors on its own device" in each.message for each in program.findings)
    load = text.replace("state = model.state_dict()", "state = model.load_state_dict(old)")
    assert analysed(tmp_path, load, "torch").is_kept("with FSDP.state_dict_type")


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
