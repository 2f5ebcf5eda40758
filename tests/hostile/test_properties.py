"""Random programs from templates: what must hold for every program holds for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_migrate.settings import Options

from .programs import FORMS, broken, run

IMPORTS = {  # how the names are imported, and how the class is written then
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, MixedPrecision, CPUOffload, BackwardPrefetch": "FSDP",
    "from torch.distributed.fsdp import (\n    BackwardPrefetch,  # when to gather\n    CPUOffload,\n    FullyShardedDataParallel,  # the class\n"
    "    MixedPrecision,\n    # how to shard\n    ShardingStrategy,\n)": "FullyShardedDataParallel",
    "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # a\n"
    "    from torch.distributed.fsdp import ShardingStrategy, MixedPrecision  # b\n"
    "    from torch.distributed.fsdp import CPUOffload, BackwardPrefetch\nexcept ImportError:  # old torch\n    FSDP = None": "FSDP",
    "from torch.distributed.fsdp import ShardingStrategy, CPUOffload; from torch.distributed.fsdp import MixedPrecision, BackwardPrefetch, "
    "FullyShardedDataParallel as F": "F",
    "import torch.distributed.fsdp\nfrom torch.distributed.fsdp import ShardingStrategy, MixedPrecision, CPUOffload, BackwardPrefetch": (
        "torch.distributed.fsdp.FullyShardedDataParallel"
    ),
    "from torch.distributed.fsdp import *": "FullyShardedDataParallel",
}
PREAMBLE = """import torch
from functools import partial
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy
from torch.distributed.device_mesh import init_device_mesh
from m import Block, Net, Norm
"""
ARGUMENTS = {
    "sharding_strategy": [
        *(f"ShardingStrategy.{n}" for n in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
        "None",
        "given",
    ],
    "cpu_offload": [
        "CPUOffload(True)",
        "CPUOffload(offload_params=False)",
        "None",
        "CPUOffload(offload_params=bool(1))",
    ],
    "auto_wrap_policy": [
        "ModuleWrapPolicy({Block})",
        "ModuleWrapPolicy([Norm, Block])",
        "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "ModuleWrapPolicy({Block} | {Norm})",
        "ModuleWrapPolicy({\n        Block,  # the block\n    })",
        "named",
        "None",
    ],
    "backward_prefetch": ["BackwardPrefetch.BACKWARD_PRE", "None"],
    "mixed_precision": [
        "MixedPrecision(torch.bfloat16)",
        "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)",
        "MixedPrecision(torch.bfloat16, cast_root_forward_inputs=False)",
        "MixedPrecision()",
        "types",
        "None",
    ],
    "device_id": ["torch.cuda.current_device()", "3", "None"],
    "sync_module_states": ["True", "False", "bool(1)"],
    "limit_all_gathers": ["True", "bool(0)"],
    "use_orig_params": ["True", "not 1"],
    "device_mesh": ["None", "init_device_mesh('cuda', (8,))"],
}
SHAPES = [
    "model = Net()\nmodel = {call}",
    "model = {call}",
    "net = Net()\nmodel = {call}",
    "def build(model):\n    return {call}\nmodel = build(Net())",
    "def build(model):\n    if model:\n        model = {call}\n    else:\n        pass  # nothing\n    return model\nmodel = build(Net())",
    "class T:\n    def __init__(self, model):\n        self.model = {call}\nt = T(Net())\nmodel = t.model",
    "x = 1; model = {call}; y = 2",
    "if PREAMBLE: model = {call}",
    "model, n = {call}, 1",
    "for i in range(1):\n    model = {call}\n    model(i)",
    "wrap = lambda model: {call}\nmodel = wrap(Net())",
    "def build():\n    model = Net()\n    try:\n        return (  # wrapped\n            {call}\n        )\n    finally:\n        print(1)\nmodel = build()",
    "async def never():\n    return {call}\nmodel = {call}",
]
AFTERWARDS = [
    "",
    "model.clip_grad_norm_(1.0)  # clip",
    "norm = model.clip_grad_norm_(max_norm=2.0)\nprint(f'{norm:.2f}')",
    "with model.no_sync():  # micro-batch\n    model(1)",
    "print(isinstance(model, {cls}))",
    "opt = torch.optim.SGD(model.parameters(), 0.1)",
]
COMMENTS = st.sampled_from(["", "", "", "  # why", "  # type: ignore", "  # fsdp-migrate: ignored"])


@st.composite
def calls(draw: st.DrawFn, cls: str, model: str) -> str:
    names = draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), unique=True, max_size=5))
    arguments = [f"{name}={draw(st.sampled_from(ARGUMENTS[name]))}" for name in names]
    given_as = [model if draw(st.booleans()) or not arguments else f"module={model}", *arguments]
    layout = draw(st.sampled_from(["flat", "tall", "commented"]))
    if layout == "flat":
        return f"{cls}({', '.join(given_as)})"
    lines = [
        f"    {argument},{draw(COMMENTS) if layout == 'commented' else ''}\n"
        for argument in given_as
    ]
    above = "    # above\n" if layout == "commented" and draw(st.booleans()) else ""
    return f"{cls}(\n{above}{''.join(lines)})"


@st.composite
def programs(draw: st.DrawFn) -> str:
    statement = draw(st.sampled_from(sorted(IMPORTS)))
    cls = IMPORTS[statement]
    shape = draw(st.sampled_from(SHAPES))
    model = "model" if "(model)" in shape or "model):" in shape or "model:" in shape else "Net()"
    model = (
        "model"
        if shape.startswith("model = Net()")
        else "net"
        if shape.startswith("net")
        else model
    )
    named = draw(st.sampled_from(["", "  # named"]))
    head = [statement, PREAMBLE.rstrip()]
    if draw(st.booleans()):
        head.reverse()
    twice = shape.count("{call}")
    body = shape
    for _ in range(twice):
        body = body.replace(
            "{call}", draw(calls(cls, model)).replace("{", "{{").replace("}", "}}"), 1
        )
    body = body.replace("{{", "{").replace("}}", "}")
    values = [
        f"PREAMBLE = 1{draw(COMMENTS)}",
        "given = ShardingStrategy.SHARD_GRAD_OP if PREAMBLE else ShardingStrategy.FULL_SHARD",
        f"named = ModuleWrapPolicy({{Block}}){named}",
        f"types = MixedPrecision(torch.bfloat16, torch.float32){draw(COMMENTS)}",
    ]
    after = draw(st.lists(st.sampled_from(AFTERWARDS), max_size=2))
    text = "\n".join(
        [
            *head,
            *values,
            "# build",
            body,
            *(line.format(cls=cls, norm=0) if "isinstance" in line else line for line in after),
        ]
    )
    return text + draw(st.sampled_from(["\n", "", "\n\n# end\n"]))


@given(programs(), st.sampled_from(FORMS))
def test_programs_are_whole(text: str, form: str) -> None:
    outcome = run(text, Options(form))
    assert not outcome.report.errors
    assert outcome.changed
    assert broken(outcome, form) == []


@given(programs(), st.booleans())
def test_line_endings_and_marks_change_nothing(text: str, mark: bool) -> None:
    plain = run(text)
    data = text.replace("\n", "\r\n").encode()
    other = run(b"\xef\xbb\xbf" + data if mark else data)
    assert not other.report.errors
    assert other.after.replace("\r\n", "\n").rstrip() == plain.after.rstrip()


@given(programs())
def test_tabs_change_nothing(text: str) -> None:
    tabs = "".join(line.replace("    ", "\t") for line in text.splitlines(keepends=True))
    outcome = run(tabs)
    assert not outcome.report.errors
    assert broken(outcome) == []


@pytest.mark.parametrize("text", ["", "\n", "# fsdp\n", "# FullyShardedDataParallel"])
def test_nearly_empty_files_stay(text: str) -> None:
    assert not run(text).changed
