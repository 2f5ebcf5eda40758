"""Comments that speak of removed code alone are removed with it."""

from pathlib import Path

import pytest

from .programs import analysed

CALL = """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model):
    return FSDP(
        model,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
{arguments}
    )
"""


@pytest.mark.parametrize(
    ("arguments", "goes"),
    [
        # Above arguments that are all removed, up to the end, an empty line or the next comment.
        ("# note\nlimit_all_gathers=True,\nparam_init_fn=None,\nignored_modules=None,", True),
        ("# note\n# note\nuse_orig_params=True,", True),
        ("# note\nuse_orig_params=True,\n# for memory\ndevice_id=0,", True),
        ("# note\nuse_orig_params=True,\n\ndevice_id=0,", True),
        ("# note\nuse_orig_params=True,\ndevice_id=0,", False),
        ("# note\ndevice_id=0,\nuse_orig_params=True,", False),
        ("# note\n\nuse_orig_params=True,", False),
        # At the end of a line.
        ("use_orig_params=True,  # note", True),
        ("use_orig_params=True  # note", True),
        ("use_orig_params=True, limit_all_gathers=True,  # note", True),
        ("use_orig_params=True, device_id=0,  # note", False),
        ("device_id=0, use_orig_params=True,  # note", False),
        ("use_orig_params=True, device_id=(  # note\n    0\n),", False),
    ],
)
@pytest.mark.parametrize("form", ["auto", "torch"])
def test_comments_at_arguments(form: str, arguments: str, goes: bool, tmp_path: Path) -> None:
    lines = "\n".join(f"        {line}".rstrip() for line in arguments.split("\n"))
    after = analysed(tmp_path, CALL.format(arguments=lines), form).after["train.py"]
    assert "use_orig_params" not in after
    assert ("# note" not in after) is goes
    assert ("# for memory" in after) is ("# for memory" in arguments)


def test_comments_in_a_dictionary(tmp_path: Path) -> None:
    text = """\
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


        def shard(model):
            options = {
                # There is plenty of memory
                "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
                # The compiler needs use_orig_params
                "use_orig_params": True,
                "device_id": 0,
                "limit_all_gathers": True,  # not too many
            }
            return FSDP(model, **options)
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "options" not in after
    assert "# There is plenty of memory" in after
    assert "compiler" not in after
    assert "many" not in after
