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


ABOVE = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from model import Block, Net


def build(args):
    model = Net()
{above}
    layers = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{Block}})
{below}
    return FSDP(model, auto_wrap_policy=layers)
"""


@pytest.mark.parametrize(
    ("above", "below", "goes"),
    [
        ("    # note", "", True),
        ("    # note\n    # and more", "", True),
        ("\n    # note", "", True),
        ("    # note", "    # other", True),
        ("    # note", "    args.used = True", False),
        ("    # note\n", "", False),
        ("    x = 1  # note", "", False),
        ("    ## note", "", False),
        ("    # --- note ---", "", False),
        ("    # 1. note", "", False),
        ("    # pylint: disable=note", "", False),
        ("    if args:\n        x = 1\n        # note", "", False),
    ],
)
def test_comments_above_a_statement(above: str, below: str, goes: bool, tmp_path: Path) -> None:
    after = analysed(tmp_path, ABOVE.format(above=above, below=below), "torch").after["train.py"]
    assert "functools" not in after
    assert ("note" not in after) is goes
    assert ("and more" not in after) is (goes or "and more" not in above)
    assert ("# other" in after) is ("# other" in below)


def test_a_title_stands_above_what_is_left(tmp_path: Path) -> None:
    text = ABOVE.format(above="    ## Sharding", below="")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "    ## Sharding\n    for module in " in after


def test_a_comment_above_several_statements(tmp_path: Path) -> None:
    text = """\
        import torch
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

        from model import Net


        def build():
            model = Net()

            # note
            prefetch = BackwardPrefetch.BACKWARD_PRE
            limit = True

            model = FSDP(model, backward_prefetch=prefetch, limit_all_gathers=limit)
            return model
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "model = Net()\n\n    fully_shard(model)\n" in after


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("# buffer_dtype=half,", True),
        ("# keep_low_precision_grads=True,  # not yet", True),
        ("# param_dtype=half,", False),
        ("# buffer_dtype is float32", False),
    ],
)
def test_arguments_that_a_comment_took_out(line: str, goes: bool, tmp_path: Path) -> None:
    text = f"""\
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

        from model import Net


        def build(half):
            mixed = None
            if half:
                mixed = MixedPrecision(
                    # for the gradients
                    reduce_dtype=torch.bfloat16,
                    {line}
                )
            return FSDP(Net(), mixed_precision=mixed)
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "# for the gradients" in after
    assert (line not in after) is goes
