"""Wrap policies of a constructor, as they are written for `fully_shard`."""

import pytest

from .constructors import HEAD, without_imports
from .programs import table
from .test_examples import analyse

# ruff: noqa: E501
# Programs behind the head, and what they become; without the comment at the line with `like_fsdp1`.
WRITTEN = table(
    """\
=== several options of every unit
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, cpu_offload=CPUOffload(True))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(
                module, reshard_after_forward=False, offload_policy=CPUOffloadPolicy()
            )
    fully_shard(model, offload_policy=CPUOffloadPolicy())
=== a class behind a name
Unit = Block
p = ModuleWrapPolicy({Unit})
model = FSDP(model, auto_wrap_policy=p)
---
Unit = Block
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Unit):
            fully_shard(module)
    fully_shard(model)
=== a policy of two calls
p = ModuleWrapPolicy({Block})
model = FSDP(model, auto_wrap_policy=p)
b = FSDP(model.b, auto_wrap_policy=p)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
with like_fsdp1(model.b):
    for module in reversed(list(model.b.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    b = fully_shard(model.b)
=== a condition
model = FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.layers))
---
with like_fsdp1(model):
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
=== policy that asks the model
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({type(model.a)}))
---
classes = (type(model.a),)
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if isinstance(module, classes):
            fully_shard(module)
    fully_shard(model)
=== policy of a container
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
---
with like_fsdp1(model):
    fully_shard(model)
=== policy of every module
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Module}))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            fully_shard(module)
    fully_shard(model)
=== policy changed on the way
p = ModuleWrapPolicy({Block})
p._module_classes.add(Net)
model = FSDP(model, auto_wrap_policy=p)
---
p = ModuleWrapPolicy({Block})
p._module_classes.add(Net)
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if p(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    fully_shard(model)
=== a class that is another at the call
p = ModuleWrapPolicy({Block})
Block = Net
model = FSDP(model, auto_wrap_policy=p)
---
p = ModuleWrapPolicy({Block})
Block = Net
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if p(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    fully_shard(model)
=== a model on the meta device
with torch.device('meta'):
    model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
---
with torch.device('meta'):
    model = Net()
with like_fsdp1(model):
    for module, options in units(model, auto_wrap_policy=ModuleWrapPolicy({Block})):
        fully_shard(module, **options)
=== a policy by a condition of the program's own
model = FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block) and m.big))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if isinstance(module, Block) and module.big:
            fully_shard(module)
    fully_shard(model)
=== one policy or another
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}) if a else None)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if a and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
=== a policy that a function gives
def policy():
    return ModuleWrapPolicy({Block})
model = FSDP(model, auto_wrap_policy=policy())
---
def policy():
    return lambda module: isinstance(module, Block)
auto_wrap_policy = policy()
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if auto_wrap_policy(module):
            fully_shard(module)
    fully_shard(model)
"""
)


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_by_its_expression(name: str) -> None:
    before, expected = WRITTEN[name]
    report, after = analyse(HEAD + before)
    assert without_imports(after) == expected
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert set(found) == ({"runtime"} if "units(" in after else {"rewrite"})
