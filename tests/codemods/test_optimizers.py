"""Optimizers of other libraries: those that go by shapes or norms of parameters."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imports}

model = FSDP(build(), use_orig_params=True)
other = build()
"""


def lines(folder: Path, imports: str, call: str) -> list[str]:
    program = HEAD.format(imports=imports) + f"optimizer = {call}\n"
    found = []
    for form in ("auto", "torch", "bridge"):
        codes = [f.code for f in analysed(folder, program, form=form).findings if f.line == 6]
        found.append(" ".join(codes))
    return found


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from torch_optimizer import Lamb", "Lamb(model.parameters(), lr=1)"),
        (
            "from transformers.optimization import Adafactor",
            "Adafactor([p for p in model.parameters()])",
        ),
        ("import came_pytorch", "came_pytorch.CAME(params=model.parameters())"),
        ("from heavyball import ForeachSOAP", "ForeachSOAP(model.parameters())"),
        ("from apex.optimizers import FusedLAMB", "FusedLAMB(groups)"),
        ("from torch_optimizer import Shampoo as Opt", "Opt(model.parameters())"),
        ("from adam_mini import Adam_mini", "Adam_mini(named_parameters=model.named_parameters())"),
        ("from timm.optim import create_optimizer_v2", "create_optimizer_v2(model, opt='lamb')"),
    ],
)
def test_one_that_goes_by_shapes_has_a_finding_in_each_form(
    imports: str, call: str, tmp_path: Path
) -> None:
    if " as Opt" in imports:
        imports, call = imports.replace(" as Opt", ""), call.replace("Opt(", "Shampoo(")
    assert lines(tmp_path, imports, call) == ["FSDP521"] * 3


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from lion_pytorch import Lion", "Lion(model.parameters(), lr=1)"),
        ("from torch.optim.lr_scheduler import LambdaLR", "LambdaLR(optimizer)"),
        ("from torch_optimizer import Lamb", "Lamb(other.parameters(), lr=1)"),
        ("from timm.optim import create_optimizer_v2", "create_optimizer_v2(model, opt='adamw')"),
        ("class Lamb: ...", "Lamb(model.parameters())"),
    ],
)
def test_others_have_none(imports: str, call: str, tmp_path: Path) -> None:
    assert "FSDP521" not in " ".join(lines(tmp_path, imports, call))
