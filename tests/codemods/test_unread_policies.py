"""Policies that no constructor is given, beside one that is: what FSDP2's has not is named."""

from pathlib import Path

from .programs import analysed

TEXT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision

used = MixedPrecision(torch.bfloat16, torch.bfloat16)
unused = MixedPrecision(param_dtype=torch.float32, buffer_dtype=torch.bfloat16)
model = FSDP(model, mixed_precision=used)
"""


def test_a_type_of_buffers_is_named_where_it_is_removed(tmp_path: Path) -> None:
    program = analysed(tmp_path, TEXT, "torch")
    assert "buffer_dtype" not in program.after["train.py"]
    said = {each.line: each.message for each in program.findings if each.code == "FSDP213"}
    assert said[5] == "Replaced by `MixedPrecisionPolicy`."
    assert said[6].startswith("Replaced by `MixedPrecisionPolicy`, which has no `buffer_dtype`.")
