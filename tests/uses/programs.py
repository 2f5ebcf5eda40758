"""One program for each use of an FSDP1 model: as it is, on the bridge, as the tool leaves it, and with the use made plain.

Every program silences the rule of its constructor, so its model keeps the bridge.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent

_PROGRAM = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from equivalence.models import Block, Transformer
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def run(batches, folder):
    seen = []
    model = Transformer()
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)  # fsdp-migrate: ignore[FSDP002]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen.append(len(FSDP.fsdp_modules(model, root_only=True)))
    for batch in batches:
        optimizer.zero_grad()
__STEP__
        optimizer.step()
        seen.append(loss.item())
__END__
    return model, seen
"""
_BACKWARD = "loss = model(*batch).float().pow(2).mean()\nloss.backward()"


@dataclass(frozen=True)
class Use:
    """What a program does with its model.

    Attributes:
        end: statements behind the training.
        step: the forward and the backward of a step.
        plain: a part of the two, and what takes its place where it is made plain; `rewritten` if the tool does so.
        imports: what that needs.
    """

    plain: tuple[str, str]
    end: str = ""
    step: str = _BACKWARD
    imports: str = ""
    rewritten: bool = False

    @property
    def source(self) -> str:
        code = _PROGRAM.replace("__STEP__", indent(self.step, " " * 8))
        return code.replace("__END__", indent(self.end, " " * 4))


_STATES = "from torch.distributed.checkpoint.state_dict import *"
_RANK0 = "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
_WHOLE = "StateDictOptions(full_state_dict=True, cpu_offload=True)"
_SAVE = 'if dist.get_rank() == 0:\n    torch.save(state, folder / "state.pt")'

_IN_FULL = f"""\
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, {_RANK0}):
    state = model.state_dict()"""
_IN_SHARDED = """\
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = model.state_dict()"""
_SUMMONED = """\
with FSDP.summon_full_params(model):
    seen += model.head.weight.sum(1).tolist()
    model.head.weight.data.mul_(2)"""

USES = {
    "full state dict": Use(
        (_IN_FULL, f"state = get_model_state_dict(model, options={_WHOLE})"),
        end=f"{_IN_FULL}\n{_SAVE}",
        imports=_STATES,
        rewritten=True,
    ),
    "sharded state dict": Use(
        (_IN_SHARDED, "state = get_model_state_dict(model)"),
        end=f'{_IN_SHARDED}\ndcp.save(state, checkpoint_id=folder / "sharded")',
        imports=_STATES,
        rewritten=True,
    ),
    "optimizer state": Use(
        (
            "FSDP.full_optim_state_dict(model, optimizer)",
            f"get_optimizer_state_dict(model, optimizer, options={_WHOLE})",
        ),
        end=f'state = FSDP.full_optim_state_dict(model, optimizer)\nstate = state.get("state")\n{_SAVE}',
        imports=_STATES,
    ),
    "clip": Use(
        ("model.clip_grad_norm_(0.01)", "clip_grad_norm_(model.parameters(), 0.01)"),
        step=f"{_BACKWARD}\nseen.append(model.clip_grad_norm_(0.01).item())",
        imports="from fsdp_migrate.runtime import clip_grad_norm_",
    ),
    "no_sync": Use(
        ("model.no_sync()", "no_sync(model)"),
        step=f"with model.no_sync():\n{indent(_BACKWARD, '    ')}\n{_BACKWARD}",
        imports="from fsdp_migrate.runtime import no_sync",
    ),
    "summon": Use(
        ("FSDP.summon_full_params(model)", "summon_full_params(model)"),
        end=_SUMMONED,
        imports="from fsdp_migrate.runtime import summon_full_params",
        rewritten=True,
    ),
    "unwrap": Use(
        ("model.module.", "model."),
        end="seen += [model.module.scale.item(), len(model.module.blocks)]",
    ),
}
FORMS = ("original", "bridge", "auto", "plain")
