"""Option objects of FSDP1, and the constructors that take them: both are rewritten, or neither."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from model import Block, Net

mp = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
{model}
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision=mp)
"""
MODELS = {
    "an ordinary model": "model = Net()",
    "a model with BatchNorm": "model = Net()  # has a BatchNorm",
    "a model on the meta device": 'with torch.device("meta"):\n    model = Net()',
}


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize("model", MODELS)
def test_a_constructor_gets_the_objects_that_it_takes(
    model: str, form: str, tmp_path: Path
) -> None:
    """The loop over `units` takes FSDP1's, `fully_shard` takes FSDP2's."""
    after = analysed(tmp_path, PROGRAM.format(model=MODELS[model]), form=form).after["train.py"]
    assert ("units(" in after) == ("mp = MixedPrecision(" in after)
    assert ("units(" in after) == (form == "auto" and model != "an ordinary model")


def test_an_object_stays_if_one_of_its_constructors_needs_it(tmp_path: Path) -> None:
    second = 'with torch.device("meta"):\n    critic = Net()\ncritic = FSDP(critic, mixed_precision=mp)\n'
    program = PROGRAM.format(model="model = Net()") + second
    after = analysed(tmp_path, program).after["train.py"]
    assert "mp = MixedPrecision(" in after
    assert "MixedPrecisionPolicy(" in after.partition("model = Net()")[2].partition("critic")[0]


def test_an_object_stays_if_its_constructor_is_left_as_it_is(tmp_path: Path) -> None:
    """Names inside of the call that imports change are in the way of the constructor's edit."""
    program = """\
        import functools
        import torch
        import torch.distributed
        from model import Block, Net
        from torch.distributed.fsdp import \\
            StateDictType, \\
            MixedPrecision, \\
            register_fsdp_forward_method as r
        from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel, BackwardPrefetch

        class Trainer:
            def __init__(self, model: Net):
                self.model = FullyShardedDataParallel(
                    model if model else torch.distributed.fsdp.CPUOffload,
                    cpu_offload=torch.distributed.fsdp.CPUOffload(True),
                    auto_wrap_policy=functools.partial(
                        torch.distributed.fsdp.wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
                    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
                    backward_prefetch=BackwardPrefetch.BACKWARD_PRE)

        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = model.state_dict()
        """
    after = analysed(tmp_path, program).after["train.py"]
    assert "self.model = FullyShardedDataParallel(" in after
    assert "mixed_precision=MixedPrecision(" in after
