"""Arguments whose value has a name, or is one of several: what becomes plain, and where the value is made."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

"""
SCALED = "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
OFFLOADS = "CPUOffloadPolicy() if read() else OffloadPolicy()"
SHARDED = "model = nn.Linear(2, 2)\nwith like_fsdp1(model):\n    fully_shard(model)\n"
BECOMES = {
    "written in the call": (
        "model = FSDP(nn.Linear(2, 2), mixed_precision=MixedPrecision(torch.bfloat16))",
        f"model = nn.Linear(2, 2)\nwith like_fsdp1(model): fully_shard(model, {SCALED})",
    ),
    "a name, whose value moves": (
        "zero2 = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(nn.Linear(2, 2), sharding_strategy=zero2)",
        "model = nn.Linear(2, 2)\nwith like_fsdp1(model): fully_shard(model, reshard_after_forward=False)",
    ),
    "an annotated name": (
        "zero2: object = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(nn.Linear(2, 2), sharding_strategy=zero2)",
        "model = nn.Linear(2, 2)\nwith like_fsdp1(model): fully_shard(model, reshard_after_forward=False)",
    ),
    "one of three": (
        "model = FSDP(nn.Linear(2, 2), cpu_offload=None if a else CPUOffload(True) if b else CPUOffload(c))",
        "model = nn.Linear(2, 2)\nwith like_fsdp1(model):\n    fully_shard(model, offload_policy="
        "OffloadPolicy() if a else CPUOffloadPolicy() if b else CPUOffloadPolicy() if c else OffloadPolicy())",
    ),
    "one of a table, which has a name": (
        'types = {"half": MixedPrecision(torch.float16)}.get(kind, MixedPrecision(torch.bfloat16))\n'
        "model = FSDP(nn.Linear(2, 2), mixed_precision=types)",
        'types = {"half": MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)}'
        ".get(kind, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))\n"
        "model = nn.Linear(2, 2)\nwith like_fsdp1(model): fully_shard(model, mp_policy=types)",
    ),
    "one that keeps its name": (
        "types = MixedPrecision(torch.bfloat16)\nmodel = FSDP(nn.Linear(2, 2), mixed_precision=types)",
        f"types = {SCALED.removeprefix('mp_policy=')}\nmodel = nn.Linear(2, 2)\n"
        "with like_fsdp1(model): fully_shard(model, mp_policy=types)",
    ),
}
# The last argument of a call that `units` reads, and which stays with what is above it.
STAYS = {
    "one of several is not known": (
        "strategy = ShardingStrategy.FULL_SHARD\nif asked():\n    strategy = read()\n",
        "sharding_strategy=strategy",
    ),
    "a name, whose value a call makes": (
        "offload = CPUOffload(read())\nshow()\n",
        "cpu_offload=offload",
    ),
    "a name of another module": ("from settings import strategy\n", "sharding_strategy=strategy"),
    "a name of FSDP1 in what a value is made of": (
        "print(1)\n",
        "cpu_offload=CPUOffload(kind is ShardingStrategy.NO_SHARD)",
    ),
    "a part of what is unpacked": (
        "strategy, other = ShardingStrategy.NO_SHARD, 1\n",
        "sharding_strategy=strategy",
    ),
}


@pytest.mark.parametrize("name", BECOMES)
def test_a_value_becomes_plain(name: str, tmp_path: Path) -> None:
    before, after = BECOMES[name]
    made = analysed(tmp_path, f"{HEAD}{before}\n").after["train.py"]
    # However long lines are laid out.
    assert ast.unparse(ast.parse(made)).endswith(ast.unparse(ast.parse(after)))


@pytest.mark.parametrize("name", STAYS)
def test_a_value_that_stays(name: str, tmp_path: Path) -> None:
    above, given = STAYS[name]
    after = analysed(tmp_path, f"{HEAD}{above}model = FSDP(net, {given})\n").after["train.py"]
    assert above in after
    assert f"in units(net, {given}):" in ast.unparse(ast.parse(after))


def test_a_policy_that_shares_its_line_stays(tmp_path: Path) -> None:
    text = "policy = ModuleWrapPolicy({nn.Linear}); other = 1\nmodel = FSDP(net, auto_wrap_policy=policy)\n"
    after = analysed(tmp_path, HEAD + text).after["train.py"]
    assert "\npolicy = ModuleWrapPolicy({nn.Linear}); other = 1\n" in after
    assert "        if module is not net and isinstance(module, nn.Linear):\n" in after


@pytest.mark.parametrize(
    "argument",
    [
        "use_orig_params=True",
        "limit_all_gathers=True",
        "forward_prefetch=False",
        "backward_prefetch=BackwardPrefetch.BACKWARD_PRE",
        "device_id=torch.cuda.current_device()",
    ],
)
def test_a_comment_of_an_argument_that_has_no_place(argument: str, tmp_path: Path) -> None:
    text = f"{HEAD}model = FSDP(\n    nn.Linear(2, 2),\n    {argument},  # why\n)\n"
    assert f"\n# FSDP1's {argument}:\n# why\n" in analysed(tmp_path, text).after["train.py"]


def test_a_policy_that_another_file_imports_and_hands_back(tmp_path: Path) -> None:
    made = "own = ModuleWrapPolicy({nn.Linear})"
    use = "from other import policy\nmodel = FSDP(nn.Linear(2, 2), auto_wrap_policy=policy)\n"
    other = "from train import own\n\npolicy = own\n"
    after = analysed(tmp_path, {"train.py": f"{HEAD}{made}\n{use}", "other.py": other}).after
    assert f"\n{made}\nfrom other import policy\n" in after["train.py"]
    assert (
        "        if module is not model and isinstance(module, nn.Linear):\n" in after["train.py"]
    )


COMMENTS = {
    "above an argument, and behind it": (
        "# above\n    use_orig_params=True,  # behind\n    cpu_offload=None,  # other",
        "# FSDP1's use_orig_params=True:\n# above\n# behind\n# other\n",
    ),
    "on the first line of an argument": (
        "device_id=torch.cuda.current_device(  # which\n    ),\n    use_orig_params=True,",
        "# FSDP1's device_id=torch.cuda.current_device():\n# which\n",
    ),
    "behind an argument of several lines": (
        "device_id=torch.cuda.current_device(\n    ),  # which\n    use_orig_params=True,",
        "# FSDP1's device_id=torch.cuda.current_device():\n# which\n",
    ),
    "below the last argument": ("use_orig_params=True,\n    # end", "# end\n"),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_a_comment_in_the_call(name: str, tmp_path: Path) -> None:
    given, expected = COMMENTS[name]
    text = f"{HEAD}model = FSDP(\n    nn.Linear(2, 2),\n    {given}\n)\n"
    assert analysed(tmp_path, text).after["train.py"].endswith(f"\n\n{expected}{SHARDED}")


def test_a_comment_that_stays_in_the_model_is_not_written_twice(tmp_path: Path) -> None:
    text = "model = FSDP(\n    nn.Linear(\n        2,  # same\n        2,\n    ),\n    cpu_offload=None,  # same\n)\n"
    after = analysed(tmp_path, HEAD + text).after["train.py"]
    assert after.count("# same") == 2
    assert "\n# same\nmodel = nn.Linear(" in after


def test_what_is_local_goes_whatever_others_import(tmp_path: Path) -> None:
    text = (
        "def build():\n    zero2 = ShardingStrategy.SHARD_GRAD_OP\n"
        "    return FSDP(nn.Linear(2, 2), sharding_strategy=zero2)\n\n\nmodel = build()\n"
    )
    files = {"train.py": HEAD + text, "other.py": "from train import build, zero2\n"}
    after = analysed(tmp_path, files).after["train.py"]
    assert "zero2" not in after
    assert "        fully_shard(model, reshard_after_forward=False)\n    return model\n" in after


def test_what_others_import_stays(tmp_path: Path) -> None:
    text = "zero2 = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(nn.Linear(2, 2), sharding_strategy=zero2)\n"
    files = {"train.py": HEAD + text, "other.py": "from train import zero2\n"}
    assert "zero2 = " in analysed(tmp_path, files).after["train.py"]


@pytest.mark.parametrize(
    ("flag", "where"),
    [
        ("cast_root_forward_inputs=True", "at the root only"),
        ("cast_forward_inputs=True", "in every unit"),
        ("cast_root_forward_inputs=False", "nowhere"),
    ],
)
def test_where_inputs_are_cast_is_said(flag: str, where: str, tmp_path: Path) -> None:
    given = f"mixed_precision=MixedPrecision(torch.bfloat16, {flag})"
    found = analysed(tmp_path, f"{HEAD}model = FSDP(nn.Linear(2, 2), {given})\n").findings
    assert any(f"inputs are cast {where}, as in FSDP1" in each.message for each in found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("CPUOffload(True)", "becomes CPUOffloadPolicy() in every unit"),
        ("CPUOffload(flag)", "becomes CPUOffloadPolicy() in every unit, where its flag is set"),
        ("False", "nothing is offloaded, as by default"),
        ("read()", "the runtime reads it: CPUOffloadPolicy() if its flag is set, else nothing is offloaded"),
    ],
)  # fmt: skip
def test_offloading_is_said_with_its_condition(given: str, said: str, tmp_path: Path) -> None:
    found = analysed(
        tmp_path, f"{HEAD}model = FSDP(nn.Linear(2, 2), cpu_offload={given})\n"
    ).findings
    assert [each.message for each in found if each.code == "FSDP201"] == [said]


def test_a_context_that_stays_is_not_said_to_be_on_the_bridge(tmp_path: Path) -> None:
    text = """\
def save(trainer, kind):
    with FSDP.state_dict_type(trainer.model, kind):
        trainer.save_model()
    return isinstance(trainer.model, torch.distributed.fsdp.FullyShardedDataParallel)
"""
    found = analysed(tmp_path, f"{HEAD}{text}").findings
    assert not any("bridge" in each.message for each in found)
    assert any(
        each.message.startswith("the runtime sets the type, of a model in any form")
        for each in found
    )
