"""Mistakes with a second model, or with what a rank holds of it: each is planted, and its line is named."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.migrated import migrate

from .test_where import look_at
from .where_programs import NO_SHARD, Case

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

AVERAGE = """\
def update(average, model):
    own = dict(average.named_parameters())
    with torch.no_grad():
        for name, value in model.named_parameters():
            own[name].mul_(0.9999).add_(value.data, alpha=1e-4)


"""
AVERAGED = Case(
    form="torch",
    definitions=AVERAGE + "from torch.distributed.fsdp import MixedPrecision\n",
    before="second = Net()\nsecond.load_state_dict(net.state_dict())",
    after=(
        "size = 0\naverage = FSDP(second, auto_wrap_policy=ModuleWrapPolicy({Block}), "
        'use_orig_params=True, device_id=torch.device("cpu"))'
    ),
    end="update(average, model)",
)
MIXED = "use_orig_params=True, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
CLIPPED = replace(
    AVERAGED,
    between="for value in model.parameters():\n    if value.grad is not None:\n        value.grad.mul_(0.5)",
)


@dataclass(frozen=True)
class Mistake:
    """What is changed in the migrated program; `line` is in the original's line."""

    case: Case
    right: str
    wrong: str
    line: str


MISTAKES = {
    "the average is not moved": Mistake(
        AVERAGED,
        "own[name].mul_(0.9999).add_(value.data, alpha=1e-4)",
        "own[name].data = own[name].data.mul(0.9999).add(value.data, alpha=1e-4)",
        "own[name].mul_(0.9999)",
    ),
    "the average is moved less": Mistake(
        CLIPPED, "add_(value.data, alpha=1e-4)", "add_(value.data, alpha=5e-5)", "own[name].mul_("
    ),
    "the average comes before the step": Mistake(
        AVERAGED,
        "    opt.step()\n    opt.zero_grad()\n    update(average, model)\n",
        "    update(average, model)\n    opt.step()\n    opt.zero_grad()\n",
        "update(average, model)",
    ),
    "a part is in no unit": Mistake(
        AVERAGED,
        "model = fully_shard(net, mesh=mesh)",
        "model = fully_shard(net, mesh=mesh, ignored_params={net.head.weight})",
        "model = FSDP(",
    ),
    "the mesh is this rank": Mistake(
        AVERAGED,
        "model = fully_shard(net, mesh=mesh)",
        "from torch.distributed.device_mesh import DeviceMesh\n"
        "own = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]\n"
        'model = fully_shard(net, mesh=DeviceMesh.from_group(own, "cpu"))',
        "model = FSDP(",
    ),
    "a unit in another precision": Mistake(
        replace(AVERAGED, options=MIXED),
        "replace(mp_policy, cast_forward_inputs=False)",
        "MixedPrecisionPolicy()",
        "model = FSDP(",
    ),
    "reduced in another precision": Mistake(
        replace(AVERAGED, options=MIXED),
        "reduce_dtype=torch.float32",
        "reduce_dtype=torch.bfloat16",
        "model = FSDP(",
    ),
    "another mode": Mistake(
        AVERAGED, "opt = torch", "model.inp.eval()\nopt = torch", "average = FSDP("
    ),
    "a seed of each rank": Mistake(
        AVERAGED,
        "torch.manual_seed(0)",
        "torch.manual_seed(dist.get_rank())",
        "torch.manual_seed(0)",
    ),
    "no seed": Mistake(AVERAGED, "torch.manual_seed(0)\n", "", "torch.manual_seed(0)"),
    "no shards, and a mesh of this rank": Mistake(
        replace(AVERAGED, options=NO_SHARD.replace("True", "False")),
        "model = fully_shard(net, mesh=mesh)",
        "from torch.distributed.device_mesh import DeviceMesh\n"
        "own = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]\n"
        'model = fully_shard(net, mesh=DeviceMesh.from_group(own, "cpu"))',
        "model = FSDP(",
    ),
    "the average is the model": Mistake(
        replace(AVERAGED, optimizer="size = 1\n" + AVERAGED.optimizer),
        "size = 1",
        "average = model\nsize = 1",
        "average = FSDP(",
    ),
}


def written(text: str, folder: Path) -> str:
    """A program as the torch form has it."""
    (folder / "new").mkdir()
    script = folder / "new" / "train.py"
    script.write_text(text)
    program = copy("new", script, folder / "new" / "copy")
    migrate(program.root, "torch")
    return program.script.read_text()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_a_second_model_is_named(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    text = mistake.case.text()
    migrated = written(text, tmp_path)
    assert migrated.count(mistake.right) == 1, migrated
    found = look_at(text, "torch", tmp_path, migrated.replace(mistake.right, mistake.wrong))
    texts = [str(line) for line in found]
    assert found, "no line"
    assert mistake.line in found[0].source, texts


SAVED = replace(
    AVERAGED,
    definitions=AVERAGE + "from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n",
    end=(
        "config = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)\n"
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
        "    state = model.state_dict()"
    ),
)


@pytest.mark.parametrize("case", [AVERAGED, CLIPPED, SAVED], ids=["averaged", "clipped", "saved"])
def test_without_a_mistake_there_is_no_line(case: Case, tmp_path: Path) -> None:
    found = look_at(case.text(), "torch", tmp_path)
    assert not found, [str(line) for line in found]


def test_a_whole_state_dict_on_every_rank_is_no_line(tmp_path: Path) -> None:
    text = SAVED.text()
    migrated = written(text, tmp_path)
    offload = ", cpu_offload=True"
    assert migrated.count(offload) == 1, migrated
    found = look_at(text, "torch", tmp_path, migrated.replace(offload, ""))
    assert not found, [str(line) for line in found]
