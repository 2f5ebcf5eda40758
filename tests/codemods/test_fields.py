"""Models and configurations in fields of the program's own classes."""

from pathlib import Path

import pytest

from fsdp_migrate import engine
from fsdp_migrate.settings import Options

DEEP = """\
from contextlib import ExitStack
from dataclasses import dataclass, field
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig

@dataclass
class State:
    model: object = None
    config: object = field(default_factory=lambda: FullOptimStateDictConfig(rank0_only=True))

    def save(self):
        with ExitStack() as stack:
            stack.enter_context(FSDP.state_dict_type(
                self.model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True), self.config
            ))
            return self.model.state_dict()

state = State()
state.model = FSDP(torch.nn.Linear(2, 2))
state = State(model=state.model)
"""


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_field_that_is_made_of_itself_ends(form: str, tmp_path: Path) -> None:
    """Its model was once followed back to itself without end."""
    (tmp_path / "train.py").write_text(DEEP)
    report = engine.analyse([tmp_path / "train.py"], Options(form=form))
    assert not report.errors
    assert b"fully_shard(state.model)" in report.changes[0].after
