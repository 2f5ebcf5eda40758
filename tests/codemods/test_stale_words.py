"""Comments and docstrings that name what the code no longer uses."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import Analysed, analysed

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, StateDictType

from model import Net


def build(args):
    {docstring}
    {policy}
    half = torch.bfloat16
    mixed = MixedPrecision(param_dtype=half)
    model = FSDP(Net(), mixed_precision=mixed, sync_module_states=args.sync)
    {weights}
    count = sum(p.numel() for p in model.parameters())
    {saving}
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
    return model, state, count
"""
NOTHING = {"docstring": '"""Builds."""', "policy": "#", "weights": "#", "saving": "#"}


def _analysed(folder: Path, form: str = "torch", **remarks: str) -> tuple[Analysed, str]:
    result = analysed(folder, PROGRAM.format(**NOTHING | remarks), form)
    return result, result.after["train.py"]


@pytest.mark.parametrize(
    ("remark", "says"),
    [
        (
            {"docstring": '"""Uses sync_module_states."""'},
            "This docstring names `sync_module_states`",
        ),
        ({"weights": "# see sync_module_states"}, "This comment names `sync_module_states`"),
        ({"weights": "x = 1  # sync_module_states"}, "This comment names `sync_module_states`"),
        ({"weights": "# no flat_param, as FSDP has"}, "FSDP2 does not flatten parameters"),
        (
            {"saving": "# SHARDED_STATE_DICT\n    # is fast"},
            "This comment names `SHARDED_STATE_DICT`",
        ),
        ({"weights": "# count"}, ""),
        ({"weights": "# state_dict of all"}, ""),
        ({"weights": "# flattened for numpy"}, ""),
        ({"weights": "text = 'sync_module_states'  # sync_module_states"}, ""),
        ({"weights": "# fsdp-migrate: ignore[FSDP023] sync_module_states"}, ""),
    ],
)
def test_what_stays_and_is_stale(remark: dict[str, str], says: str, tmp_path: Path) -> None:
    result, after = _analysed(tmp_path, **remark)
    (text,) = remark.values()
    assert text in after
    messages = [each.message for each in result.findings if each.code == "FSDP023"]
    assert len(messages) == bool(says)
    assert all(message.startswith(says) for message in messages)


def test_a_finding_is_on_the_lines_that_name_it(tmp_path: Path) -> None:
    remark = '"""Builds the model.\n\n    With sync_module_states,\n    and fast.\n    """'
    result, _ = _analysed(tmp_path, docstring=remark)
    (finding,) = [each for each in result.findings if each.code == "FSDP023"]
    line = result.before["train.py"].splitlines()[finding.line - 1]
    assert line == "    With sync_module_states,"
    assert (finding.end_line, finding.end_column) == (finding.line, len(line) + 1)
    assert finding.action is Action.MANUAL


@pytest.mark.parametrize(
    ("comment", "goes"),
    [
        ("# SHARDED_STATE_DICT alone works with use_orig_params", True),
        ("# use_orig_params\n    # and limit_all_gathers", True),
        ("# use_orig_params\n    # is fast", False),
        ("# SHARDED_STATE_DICT of each rank", False),
        ("# FULL_SHARD among the nodes", False),
    ],
)
def test_a_comment_about_what_fsdp2_does_not_have(comment: str, goes: bool, tmp_path: Path) -> None:
    _, after = _analysed(tmp_path / "above", saving=comment)
    assert (comment not in after) is goes
    _, after = _analysed(tmp_path / "elsewhere", weights=comment)
    assert comment in after


def test_a_policy_gets_its_new_name(tmp_path: Path) -> None:
    page = "https://pytorch.org/docs/stable/{}.html#torch.distributed.fsdp.{}"
    old = page.format("fsdp", "MixedPrecision")
    new = page.format("distributed.fsdp.fully_shard", "MixedPrecisionPolicy")
    _, after = _analysed(tmp_path, policy=f"# MixedPrecision, see\n    # {old}")
    assert f"    # MixedPrecisionPolicy, see\n    # {new}\n" in after


def test_a_parameter_that_nothing_reads(tmp_path: Path) -> None:
    text = """\
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        from model import Net


        def shard(model, keep_names=True):
            # It hangs without keep_names

            return FSDP(model, use_orig_params=keep_names)


        shard(Net(), **options)
        """
    result = analysed(tmp_path, text, "torch")
    (finding,) = [each for each in result.findings if each.code == "FSDP023"]
    assert "# It hangs without keep_names" in result.after["train.py"]
    assert finding.message.startswith(
        "This comment names `keep_names`, which the code no longer uses."
    )


def test_imports_alone_make_nothing_stale(tmp_path: Path) -> None:
    result, _ = _analysed(tmp_path, "bridge", weights="# sync_module_states")
    assert "FSDP023" not in {each.code for each in result.findings}


def test_a_line_with_nothing_but_a_backslash(tmp_path: Path) -> None:
    """Python reads the next line as if that were not there; its tokenizer takes the indentation for wrong."""
    text = (
        "#!/usr/bin/env python\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def shard(model, keep_names=True):\n"
        "    # It hangs without keep_names\n"
        "\\\n"
        "    return FSDP(model, use_orig_params=keep_names)\n"
    )
    found = analysed(tmp_path, text, "torch").findings
    assert [each.line for each in found if each.code == "FSDP023"] == [6]
