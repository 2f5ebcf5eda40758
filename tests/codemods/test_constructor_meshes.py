"""Strategies, meshes and groups of a constructor, as they are written for `fully_shard`."""

import pytest

from fsdp_migrate.findings import Severity

from .constructors import HEAD, without_imports
from .programs import table
from .test_examples import analyse

# ruff: noqa: E501
# Programs behind the head, and what they become; without the comment at the line with `like_fsdp1`.
WRITTEN = table(
    """\
=== a mesh
model = FSDP(model, device_mesh=init_device_mesh('cuda', (8,)))
---
with like_fsdp1(model):
    fully_shard(model, mesh=init_device_mesh('cuda', (8,)))
=== hybrid without a mesh
model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, auto_wrap_policy=ModuleWrapPolicy({Block}))
---
per_node = torch.cuda.device_count()
mesh = init_device_mesh(
    "cuda",
    (torch.distributed.get_world_size() // per_node, per_node),
    mesh_dim_names=("replicate", "shard"),
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy by a condition
model = FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP)
---
with like_fsdp1(model):
    fully_shard(model)
=== replicas
model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
---
mesh = init_device_mesh(
    "cuda",
    (torch.distributed.get_world_size(), 1),
    mesh_dim_names=("replicate", "shard"),
)
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a strategy by a condition, with units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=a)
    fully_shard(model)
=== a strategy by a table
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy={'full': ShardingStrategy.FULL_SHARD, 'zero2': ShardingStrategy.SHARD_GRAD_OP, 'node': ShardingStrategy.HYBRID_SHARD}[kind])
---
mesh = None
if kind == 'node':
    per_node = torch.cuda.device_count()
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // per_node, per_node),
        mesh_dim_names=("replicate", "shard"),
    )
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=kind != 'zero2', mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy by its name
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy[kind])
---
reshard_after_forward = kind not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
mesh = None
if kind in ("NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
    shards = torch.cuda.device_count()
    if kind == "NO_SHARD":
        shards = 1
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // shards, shards),
        mesh_dim_names=("replicate", "shard"),
    )
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy of which nothing is known
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=config.strategy, device_mesh=mesh)
---
reshard_after_forward = config.strategy not in (
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy that branches assign
if a:
    s = ShardingStrategy.SHARD_GRAD_OP
else:
    s = ShardingStrategy.FULL_SHARD
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=s)
---
if a:
    s = ShardingStrategy.SHARD_GRAD_OP
else:
    s = ShardingStrategy.FULL_SHARD
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(
                module, reshard_after_forward=s is not ShardingStrategy.SHARD_GRAD_OP
            )
    fully_shard(model)
=== replicas of a group
model = FSDP(model, process_group=group, sharding_strategy=ShardingStrategy.NO_SHARD if ddp else ShardingStrategy.FULL_SHARD)
---
mesh = DeviceMesh.from_group(group, "cuda")
if ddp:
    alone = torch.distributed.new_group(
        [torch.distributed.get_rank()], use_local_synchronization=True
    )
    ranks = torch.tensor(torch.distributed.get_process_group_ranks(group)).view(-1, 1)
    mesh = DeviceMesh.from_group(
        [group, alone], "cuda", mesh=ranks, mesh_dim_names=("replicate", "shard")
    )
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a pair of groups
model = FSDP(model, process_group=(inner, outer), sharding_strategy=ShardingStrategy.HYBRID_SHARD, sync_module_states=True)
---
shard_group, replicate_group = (inner, outer)
rows = [None] * torch.distributed.get_world_size()
torch.distributed.all_gather_object(
    rows, tuple(torch.distributed.get_process_group_ranks(shard_group))
)
mesh = DeviceMesh.from_group(
    [replicate_group, shard_group],
    "cuda",
    mesh=torch.tensor(sorted(set(rows))),
    mesh_dim_names=("replicate", "shard"),
)
# Every rank begins with rank 0's values
for tensor in [*model.parameters(), *model.buffers()]:
    torch.distributed.broadcast(tensor.detach(), src=0)
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a pair of groups under a condition
model = FSDP(model, process_group=groups, sharding_strategy={'node': ShardingStrategy.HYBRID_SHARD, 'all': ShardingStrategy.FULL_SHARD}[kind])
---
if kind == 'node':
    shard_group, replicate_group = groups
    rows = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(
        rows, tuple(torch.distributed.get_process_group_ranks(shard_group))
    )
    mesh = DeviceMesh.from_group(
        [replicate_group, shard_group],
        "cuda",
        mesh=torch.tensor(sorted(set(rows))),
        mesh_dim_names=("replicate", "shard"),
    )
else:
    mesh = DeviceMesh.from_group(groups, "cuda")
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a group
model = FSDP(model, process_group=group)
---
with like_fsdp1(model):
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cuda"))
"""
)


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_by_its_expression(name: str) -> None:
    before, expected = WRITTEN[name]
    report, after = analyse(HEAD + before)
    assert without_imports(after) == expected
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert set(found) == ({"runtime"} if "units(" in after else {"rewrite"})


@pytest.mark.parametrize(
    ("said", "is_other"),
    [
        ("import torch_npu", True),
        ("backend = Accelerator.NPU", True),
        ("if is_xpu_available():\n    pass", True),
        ("input_ids = inputs", False),
    ],
)
def test_the_devices_of_a_program_that_runs_on_others_than_cuda(said: str, is_other: bool) -> None:
    calls = (
        "model = FSDP(model, process_group=group)\n"
        "other = FSDP(other, sharding_strategy=ShardingStrategy.HYBRID_SHARD)\n"
    )
    _, after = analyse(f"{HEAD}{said}\n{calls}", "torch")
    code = "".join(after.split())
    device = '"cuda"'
    if is_other:
        device = "torch.accelerator.current_accelerator().type"
    assert f"DeviceMesh.from_group(group,{device})" in code
    assert f"init_device_mesh({device}," in code
    assert ("torch.accelerator.device_count()" in code) is is_other
    assert ("torch.cuda.device_count()" in code) is not is_other


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_mesh_without_names_to_replicate_over_gets_some(form: str) -> None:
    mesh = 'mesh = init_device_mesh("cuda", SHAPE)\n'
    call = (
        "model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)\n"
    )
    (found,) = analyse(HEAD + mesh + call, form)[0].manual
    assert (found.code, found.severity) == ("FSDP107", Severity.RAISES)
    mesh = mesh.replace("SHAPE", "(2, 8)")
    named = mesh.replace("8))", '8), mesh_dim_names=("replicate", "shard"))')
    report, after = analyse(HEAD + mesh + call, form)
    assert report.manual == []
    assert named in after
    assert analyse(HEAD + named + call, form)[0].manual == []


def test_a_path_in_a_dictionary_of_arguments_goes_with_it() -> None:
    """What else compares strategies must not need its import."""
    text = (
        "from torch.distributed import fsdp as named\n"
        "options = dict(sharding_strategy=named.ShardingStrategy.FULL_SHARD)\n"
        "model = FSDP(model, **options)\nother = FSDP(other, sharding_strategy=given)\n"
    )
    _, after = analyse(HEAD + text, "torch")
    assert "as named" not in after
    assert "named." not in after
    assert "given not in (\n    ShardingStrategy.SHARD_GRAD_OP," in after


HANDED_ON = """\
def build(model, a):
    def wrap(module):
        return FSDP(module, sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP)

    return {use}
"""


@pytest.mark.parametrize(
    ("use", "is_unit"),
    [
        ("apply(model, wrap)", True),
        ("apply(model, wrapper=wrap)", True),
        ("wrap(model)", False),
        ("functools.partial(wrap, model)", False),
    ],
)
def test_what_a_function_shards_may_be_a_unit_where_it_is_handed_on(
    use: str, is_unit: bool
) -> None:
    text = HANDED_ON.format(use=use)
    report, after = analyse(f"{HEAD}import functools\n\n\n{text}", "torch")
    assert ("fully_shard(module, reshard_after_forward=a)" in after) is is_unit
    (said,) = [each.message for each in report.findings if each.code == "FSDP105"]
    assert said.startswith("Replaced by `reshard_after_forward`") is is_unit
    assert said.startswith("Removed: the model is one unit") is not is_unit
