"""Small FSDP1 programs that write a checkpoint, or go on from one, in the ways that programs do it.

Each is run as it is, under FSDP1, and with its imports swapped, on the bridge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import nets as models
from ..swapped import imports, swap

_TEMPLATE = """\
{imports}
from nets import {models}

{top}
def save(model, optimizer, folder, trainer):
{save}


def load(model, optimizer, folder, trainer):
{load}


def run(train, folder, resume, trainer):
    model = {model}()
{prepare}    model = FSDP(model{arguments})
{optimizer}
    if resume:
        load(model, optimizer, folder, trainer)
    train(model, optimizer)
    if not resume:
        save(model, optimizer, folder, trainer)
        train(model, optimizer)
"""


ORIGINAL, BRIDGE = "original", "bridge"


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        source: its text.
        model: the class of its model.
        fsdp1: a part of the text and what FSDP1 of today runs with instead.
    """

    name: str
    source: str
    model: type[Any]
    fsdp1: tuple[str, str]

    @property
    def original(self) -> str:
        return self.source.replace(*self.fsdp1)


ADAM = "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
GROUPS = """\
norms = [p for n, p in model.named_parameters() if "norm" in n]
rest = [p for n, p in model.named_parameters() if "norm" not in n]
groups = [{"params": rest, "lr": 0.01}, {"params": norms, "weight_decay": 0.5}]
optimizer = torch.optim.AdamW(groups)
"""
UNITS = "auto_wrap_policy=ModuleWrapPolicy({Block})"
ORIG = f"{UNITS}, use_orig_params=True"
BF16 = (
    "mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16), "
    "auto_wrap_policy=ModuleWrapPolicy({Block, torch.nn.Conv2d}), use_orig_params=True"
)


def program(
    name: str,
    save: str,
    load: str,
    *,
    top: str = "",
    model: type[Any] = models.Transformer,
    arguments: str = ORIG,
    prepare: str = "",
    optimizer: str = ADAM,
    fsdp1: tuple[str, str] = ("", ""),
) -> Program:
    code = "\n".join((save, load, top, optimizer, f"FSDP(dist, torch, {arguments})"))
    lines = [line for line in imports(code) if not line.endswith(" Block")]
    used = sorted({model.__name__, "Block"} if "Block" in code else {model.__name__})
    source = _TEMPLATE.format(
        imports="\n".join(lines),
        models=", ".join(used),
        top=f"{top}\n" if top else "",
        save=_indented(save),
        load=_indented(load),
        model=model.__name__,
        arguments=f", {arguments}" * bool(arguments),
        prepare=_indented(prepare) + "\n" * bool(prepare),
        optimizer=_indented(optimizer),
    )
    return Program(name, source, model, fsdp1)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


_FULL = "StateDictType.FULL_STATE_DICT"
_SHARDED = "StateDictType.SHARDED_STATE_DICT"

_SAVE_BOTH = """\
if dist.get_rank() == 0:
    torch.save({"model": state, "optimizer": optim_state}, folder / "both.pt")
"""
_SAVE_CONTEXT = f"""\
config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
optim_config = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, {_FULL}, config, optim_config):
    state = model.state_dict()
    optim_state = FSDP.optim_state_dict(model, optimizer)
{_SAVE_BOTH}"""
_LOAD_CONTEXT = f"""\
both = torch.load(folder / "both.pt")
with FSDP.state_dict_type(model, {_FULL}):
    model.load_state_dict(both["model"])
    optim_state = FSDP.optim_state_dict_to_load(model, optimizer, both["optimizer"])
optimizer.load_state_dict(optim_state)
"""
_ORDERS = (
    'both["optimizer"], model, optimizer',
    'model, optimizer, both["optimizer"]',
)  # until torch 2.1
_OLD_ORDER = _LOAD_CONTEXT.replace(_ORDERS[1], _ORDERS[0])
_SAVE_SET = f"""\
FSDP.set_state_dict_type(
    model,
    {_FULL},
    FullStateDictConfig(rank0_only=False),
    FullOptimStateDictConfig(rank0_only=True),
)
state = model.state_dict()
optim_state = FSDP.optim_state_dict(model, optimizer, optimizer.state_dict())
{_SAVE_BOTH}"""
_LOAD_SET = f"""\
both = torch.load(folder / "both.pt")
FSDP.set_state_dict_type(model, {_FULL}, FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=True))
model.load_state_dict(both["model"])
own = both["optimizer"] if dist.get_rank() == 0 else None
FSDP.optim_state_dict_to_load(model, optimizer, own, load_directly=True)
"""
_SAVE_LEGACY = f"""\
with FSDP.state_dict_type(model, {_FULL}, FullStateDictConfig(True, True)):
    state = model.state_dict()
optim_state = FSDP.full_optim_state_dict(model, optimizer)
{_SAVE_BOTH}"""
_LOAD_MODEL = f"""\
both = torch.load(folder / "both.pt")
with FSDP.state_dict_type(model, {_FULL}):
    model.load_state_dict(both["model"])
"""
_LOAD_SHARD = f"""\
{_LOAD_MODEL}optim_state = FSDP.shard_full_optim_state_dict(both["optimizer"], model, optim=optimizer)
optimizer.load_state_dict(optim_state)
"""
_SAVE_SHARDED = f"""\
with FSDP.state_dict_type(model, {_SHARDED}):
    state = {{"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}}
    dcp.save(state, checkpoint_id=folder / "sharded")
"""
_LOAD_SHARDED = f"""\
with FSDP.state_dict_type(model, {_SHARDED}):
    state = {{"model": model.state_dict()}}
    dcp.load(state, checkpoint_id=folder / "sharded")
    model.load_state_dict(state["model"])
    saved = load_sharded_optimizer_state_dict(
        model_state_dict=state["model"],
        optimizer_key="optimizer",
        storage_reader=dcp.FileSystemReader(folder / "sharded"),
    )
    optim_state = FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
    optimizer.load_state_dict(optim_state)
"""
_LOAD_SHARDED_TENSORS = _LOAD_SHARDED.replace(
    "saved", "optim_state"
)  # which nothing but the runtime takes
_DCP = """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
"""
_CONTEXT = f"with state_dict_type(model, {_FULL}, FullStateDictConfig(True, True)):"
_SAVE_MODEL = 'trainer.save(model, folder / "model.pt")'
_SAVE_TRAINER = f"""\
{_CONTEXT.replace("state", "FSDP.state", 1)}
    {_SAVE_MODEL}
    torch.save(FSDP.optim_state_dict(model, optimizer), folder / f"optimizer-{{dist.get_rank()}}.pt")
"""
_LOAD_TRAINER = f"""\
FSDP.set_state_dict_type(model, {_FULL})
trainer.load(model, folder / "model.pt")
optim_state = torch.load(folder / "optimizer-0.pt")
optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim_state))
"""
_FREEZE = "model.embed.requires_grad_(False)"

PROGRAMS = [
    program("context", _SAVE_CONTEXT, _LOAD_CONTEXT, optimizer=GROUPS),
    program(
        "old-order", _SAVE_CONTEXT, _OLD_ORDER, model=models.Tied, optimizer=SGD, fsdp1=_ORDERS
    ),
    program("batch-norm", _SAVE_CONTEXT, _LOAD_CONTEXT, model=models.ConvNet, arguments=BF16),
    program("set", _SAVE_SET, _LOAD_SET, prepare=_FREEZE),
    program("legacy", _SAVE_LEGACY, _LOAD_SHARD, arguments=UNITS, optimizer=SGD),
    program("sharded", _SAVE_SHARDED, _LOAD_SHARDED, top=_DCP, optimizer=GROUPS),
    program("sharded-flat", _SAVE_SHARDED, _LOAD_SHARDED_TENSORS, top=_DCP, arguments=UNITS),
    program("trainer", _SAVE_TRAINER, _LOAD_TRAINER),
]


@dataclass(frozen=True)
class Run:
    """One run of a program.

    Attributes:
        program: which program.
        form: where it runs: original, under FSDP1, or bridge.
        of: the form whose checkpoint it goes on from; "" to start anew and write one.
        fault: the name of the fault that is planted in the text.
    """

    program: Program
    form: str
    of: str = ""
    fault: str = ""

    @property
    def name(self) -> str:
        return ".".join((self.program.name, self.form, self.of, self.fault))

    @property
    def source(self) -> str:
        """The text, with the fault if there is one."""
        text = self.program.original if self.form == ORIGINAL else swap(self.program.source)
        if self.fault:
            fault = FAULTS[self.fault]
            assert fault.old in text, text
            text = text.replace(fault.old, fault.new)
        return text

    @property
    def folder(self) -> str:
        """Where its checkpoint is."""
        if self.of in ("", self.form):
            return f"{self.program.name}.{self.form}.{self.fault}"
        return f"{self.program.name}.{self.of}."


@dataclass(frozen=True)
class Fault:
    """A change to a program on the bridge that must not go unnoticed.

    Attributes:
        program: the name of the program.
        old: a part of its text.
        new: what is put in its place.
        of: the form whose checkpoint it goes on from; "" for its own.
        error: how the program fails; "" if it goes on with other losses.
    """

    program: str
    old: str
    new: str
    of: str = ORIGINAL
    error: str = ""


_LOAD_OPTIMIZER = "optimizer.load_state_dict(optim_state)"
_SAVE_SHARDS = """\
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {name: getattr(v, "_local_tensor", v) for name, v in model.state_dict().items()}
        torch.save(state, folder / ["model.pt", "other.pt"][dist.get_rank()])
"""
FAULTS = {
    "momentum-dropped": Fault("legacy", _LOAD_OPTIMIZER, "pass"),
    "groups-dropped": Fault("context", _LOAD_OPTIMIZER, "pass"),
    "buffers-dropped": Fault(
        "batch-norm",
        'model.load_state_dict(both["model"])',
        'both["model"].pop("mean")\n        model.load_state_dict(both["model"], strict=False)',
    ),
    "shards-of-one-rank": Fault(
        "trainer",
        f"{_CONTEXT.replace('state', 'FSDP.state', 1)}\n        {_SAVE_MODEL}\n",
        f"{_SAVE_SHARDS}    if True:\n",
        of="",
        error="size mismatch",
    ),
}


def _runs() -> list[Run]:
    runs = []
    for each in PROGRAMS:
        runs += [Run(each, ORIGINAL), Run(each, BRIDGE)]
        runs += [Run(each, BRIDGE, of=BRIDGE), Run(each, BRIDGE, of=ORIGINAL)]
        runs.append(Run(each, ORIGINAL, of=BRIDGE))
    programs = {each.name: each for each in PROGRAMS}
    for name, fault in FAULTS.items():
        program = programs[fault.program]
        if not fault.of:
            runs.append(Run(program, BRIDGE, fault=name))
        runs.append(Run(program, BRIDGE, of=fault.of or BRIDGE, fault=name))
    return runs


RUNS = _runs()
