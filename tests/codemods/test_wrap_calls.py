"""`wrap` under `enable_wrap` in torch's form."""

from pathlib import Path
from textwrap import indent

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build(model, half):
    half = half or torch.bfloat16
    # Units
    with {head}:
{body}
    return model
"""
HEAD = "enable_wrap(wrapper_cls=FSDP, mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half))"
BODY = """\
for number, block in enumerate(model.blocks):  # all
    # Each by itself
    model.blocks[number] = wrap(block)
model = wrap(model)
"""


def _after(folder: Path, head: str = HEAD, body: str = BODY, **others: str) -> str:
    text = PROGRAM.format(head=head, body=indent(body, " " * 8))
    files = {"train.py": text, **{f"{name}.py": code for name, code in others.items()}}
    return analysed(folder, files, "torch").after["train.py"]


def test_the_block_is_left(tmp_path: Path) -> None:
    after = _after(tmp_path)
    assert "wrap" not in after
    assert indent(BODY, "    ").replace("wrap(", "shard(") in after


def test_arguments_are_given_to_each_call(tmp_path: Path) -> None:
    after = _after(tmp_path, "enable_wrap(wrapper_cls=FSDP, device_mesh=half)")
    assert (
        indent(BODY.replace("wrap(block", "fully_shard(block"), "    ")
        .replace("wrap(model)", "fully_shard(model, mesh=half)")
        .replace("(block)", "(block, mesh=half)")
        in after
    )


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (HEAD, "model = make(model, wrap)\n"),
        (HEAD, "model = make(lambda: wrap(model))\n"),
        (HEAD, "model = make(model)\n"),
        (f"{HEAD}, torch.device('cuda')", BODY),
        (f"{HEAD} as around", BODY),
    ],
)
def test_the_block_stays_where_it_may_be_for_more(head: str, body: str, tmp_path: Path) -> None:
    assert "enable_wrap(wrapper_cls=" in _after(tmp_path, head, body)


def test_the_block_stays_where_another_file_may_wrap(tmp_path: Path) -> None:
    policies = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
    assert "enable_wrap" not in _after(tmp_path / "policies", model=policies)
    calls = "from torch.distributed.fsdp.wrap import (\n    always_wrap_policy,\n    wrap,\n)\nhead = wrap(head)\n"
    assert "enable_wrap(wrapper_cls=" in _after(tmp_path / "calls", model=calls)


def test_a_function_inside_of_another_is_set_off_by_empty_lines(tmp_path: Path) -> None:
    text = PROGRAM.format(head=HEAD, body=indent(BODY, " " * 8)).replace("    # Units\n", "")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "torch.bfloat16\n\n    def shard(model):" in after
    assert "        return model\n\n    for number" in after
