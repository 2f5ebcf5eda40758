"""Buffers in the torch form: by which expression they are cast, in which loop, and where there are none to cast."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from library import make


class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU())
        {part}

    def forward(self, x):
        return self.layers(x)


class Net(Part):
    def __init__(self):
        super().__init__(8)
        parts = []
        for width in range(3):
            parts.append(Part(width))
        self.parts = nn.ModuleList(parts)
        self.apply(self.init)

    def init(self, module):
        nn.init.ones_(module.weight)


def main(args):
    dtype = getattr(torch, args.dtype)
    model = {model}
    policy = MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32, buffer_dtype=dtype)
    model = FSDP(model, mixed_precision=policy{more})
    return model
"""
LOOP = """\
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(dtype)
"""
# A statement in a class, and what makes the model, and whether there may be buffers to cast.
CASES = {
    "no buffers": ("pass", "Net()", False),
    "a buffer": ("self.register_buffer('scale', torch.ones(1))", "Net()", True),
    "one of torch's modules": ("self.norm = nn.BatchNorm1d(width)", "Net()", True),
    "another library's module": ("self.part = make(width)", "Net()", True),
    "a class that is given": ("self.part = width(8)", "Net()", True),
    "another library's model": ("pass", "make()", True),
}


@pytest.mark.parametrize("case", CASES)
def test_buffers_are_cast_where_there_may_be_some(case: str, tmp_path: Path) -> None:
    part, model, has_buffers = CASES[case]
    text = PROGRAM.replace("{part}", part).replace("{model}", model).replace("{more}", "")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert (LOOP in after) is has_buffers, after
    assert ("buffers()" in after) is has_buffers


def test_the_loop_that_broadcasts_casts_too(tmp_path: Path) -> None:
    more = ", sync_module_states=True, param_init_fn=make"
    text = PROGRAM.replace("{part}", "pass").replace("{model}", "make()").replace("{more}", more)
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.count("for buffer in model.buffers():") == 1
    assert "broadcast(buffer, src=0)\n        if buffer.is_floating_point():\n" in after


def test_the_loop_that_moves_casts_too(tmp_path: Path) -> None:
    more = ", device_id=torch.cuda.current_device(), param_init_fn=make"
    text = PROGRAM.replace("{part}", "pass").replace("{model}", "make()").replace("{more}", more)
    both = """\
    for buffer in model.buffers():
        dtype_ = dtype if buffer.is_floating_point() else None
        buffer.data = buffer.to("cuda", dtype_)
"""
    assert both in analysed(tmp_path, text, "torch").after["train.py"]


def test_a_name_that_means_something_else_there_is_not_read(tmp_path: Path) -> None:
    text = PROGRAM.replace("{part}", "pass").replace("{model}", "make()").replace("{more}", "")
    other = "    dtype = torch.float16\n    model = FSDP("
    after = analysed(tmp_path, text.replace("    model = FSDP(", other), "torch").after["train.py"]
    assert "buffer.to(policy.param_dtype)" in after


def test_one_loop_moves_and_casts_where_one_call_has_no_room(tmp_path: Path) -> None:
    more = ", device_id=torch.cuda.current_device(), param_init_fn=make"
    text = PROGRAM.replace("{part}", "pass").replace("{model}", "make()").replace("{more}", more)
    text = text.replace("dtype = getattr", f"{'x' * 40} = getattr").replace(
        "=dtype", f"={'x' * 40}"
    )
    both = f"""\
    for buffer in model.buffers():
        buffer.data = buffer.to("cuda")
        if buffer.is_floating_point():
            buffer.data = buffer.to({"x" * 40})
"""
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert both in after
    assert after.count("model.buffers()") == 1


NO_TYPE = {
    "a policy that branches choose": (
        "    policy = MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32, buffer_dtype=dtype)\n",
        "    policy = None\n    if args.half:\n"
        "        policy = MixedPrecision(param_dtype=torch.half, reduce_dtype=torch.half, buffer_dtype=torch.half)\n",
    ),
    "no type": (
        "dtype = getattr(torch, args.dtype)",
        "dtype = getattr(torch, args.dtype) if args.dtype else None",
    ),
}


@pytest.mark.parametrize("case", NO_TYPE)
def test_buffers_are_cast_where_there_is_a_type(case: str, tmp_path: Path) -> None:
    """A tensor's `.to(None)` does nothing."""
    text = PROGRAM.replace("{part}", "pass").replace("{model}", "make()").replace("{more}", "")
    old, new = NO_TYPE[case]
    assert old in text
    after = analysed(tmp_path, text.replace(old, new), "torch").after["train.py"]
    dtype = "dtype" if case == "no type" else "policy.param_dtype"
    cast = f"    if {dtype} is not None:\n        for buffer in model.buffers():\n"
    assert cast in after, after
    assert f"buffer.data = buffer.to({dtype})" in after
