"""The torch form of models without memory, as a maintainer would write it."""

from pathlib import Path

import pytest

from .by_hand import rewritten
from .programs import analysed, table

CASES = table("""\
=== memory at once, which rank 0 fills; on the CPU where parameters are offloaded
model = FSDP(
    model,
    cpu_offload=CPUOffload(args.offload),
    sync_module_states=True,
    param_init_fn=lambda m: m.to_empty(device=device, recurse=False) if rank else None,
)
---
state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
fully_shard(
    model, offload_policy=CPUOffloadPolicy() if args.offload else OffloadPolicy()
)
if rank:
    model.to_empty(device="cpu" if args.offload else device)
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, state_dict, options=options)
for buffer in model.buffers():
    # FSDP2 offloads parameters alone
    buffer.data = buffer.to("cuda")
    torch.distributed.broadcast(buffer, src=0)
=== memory by a function of the program's own
def give_memory(module):
    if get_rank() != 0:
        module.to_empty(device=get_device(), recurse=False)
        torch.cuda.empty_cache()


model = FSDP(model, sync_module_states=True, param_init_fn=give_memory)
---
def give_memory(module):
    if get_rank() != 0:
        module.to_empty(device=get_device(), recurse=False)
        torch.cuda.empty_cache()


# Rank 0 has the values; the other ranks get their shards of them
state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
fully_shard(model)
if next(model.parameters()).is_meta:
    model.apply(give_memory)
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, state_dict, options=options)
for buffer in model.buffers():
    torch.distributed.broadcast(buffer, src=0)
=== memory that all ranks may be given, by a lambda in a variable
def build(model, first):
    if first:
        fill = None
    else:
        fill = lambda m: m.to_empty(device=device, recurse=False)
    model = FSDP(model, sync_module_states=True, param_init_fn=fill)
    return model
---
def build(model, first):
    # Rank 0 has the values; the other ranks get their shards of them
    state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
    fully_shard(model)
    if next(model.parameters()).is_meta:
        model.to_empty(device=device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state_dict, options=options)
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
    return model
=== memory under a condition that says nothing of ranks
model = FSDP(
    model,
    sync_module_states=lazy,
    param_init_fn=(lambda m: m.to_empty(device=device, recurse=False)) if lazy else None,
)
---
# Rank 0 has the values; the other ranks get their shards of them
state_dict = model.state_dict() if lazy and torch.distributed.get_rank() == 0 else {}
fully_shard(model)
if lazy and next(model.parameters()).is_meta:
    model.to_empty(device=device)
if lazy:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state_dict, options=options)
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
=== memory that nothing fills by another way
model = FSDP(model, param_init_fn=lambda m: m.to_empty(device=device, recurse=False))
---
fully_shard(model)
if next(model.parameters()).is_meta:
    for module in model.modules():
        module.to_empty(device=device, recurse=False)
=== a function for a model of which a part is another's
model.head = head
model = FSDP(model, param_init_fn=fill)
---
model.head = head
fully_shard(model)
on_meta = [
    m
    for m in model.modules()
    if any(t.is_meta for t in (*m.parameters(), *m.buffers()))
]
for module in on_meta:
    fill(module)
=== buffers that reset_parameters makes on the CPU
with torch.device("meta"):
    net = build(torch)
net = FSDP(net, device_id=device, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16))
---
with torch.device("meta"):
    net = build(torch)
torch.cuda.set_device(device)
mp_policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
fully_shard(net, mp_policy=mp_policy)
for module in net.modules():
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if any(tensor.is_meta for tensor in own):
        module.to_empty(device="cuda", recurse=False)
        module.reset_parameters()
for buffer in net.buffers():
    dtype = torch.bfloat16 if buffer.is_floating_point() else None
    buffer.data = buffer.to(device, dtype)
=== a function for models on the meta device, and a model that is not
def build_real(args):
    model = Net(args)
    if args.show:
        print(model)
    model = FSDP(model, sync_module_states=True, param_init_fn=fill)
    model = restored(model)
    return model
---
def build_real(args):
    model = Net(args)
    if args.show:
        print(model)
    # Every rank begins with rank 0's values
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    model = restored(model)
    return model
=== a function for a model that is made in a context
def build_there(args):
    with args.device:
        model = Net(args)
    return FSDP(model, param_init_fn=fill)
---
def build_there(args):
    with args.device:
        model = Net(args)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
=== a function for a model that is told its device
def build_on(args):
    model = Net(args, device=args.device)
    return FSDP(model, param_init_fn=fill)
---
def build_on(args):
    model = Net(args, device=args.device)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
=== a function for a model that a function makes
def build_some(args):
    model = make(args)
    return FSDP(model, param_init_fn=fill)
---
def build_some(args):
    model = make(args)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
=== what is too long for its line
def build(model, use_another_rank=True):
    model = FSDP(
        model,
        sync_module_states=use_another_rank or config.low_cpu_fsdp,
        param_init_fn=fill,
    )
    return model
---
def build(model, use_another_rank=True):
    # Rank 0 has the values; the other ranks get their shards of them
    state_dict = {}
    if (use_another_rank or config.low_cpu_fsdp) and torch.distributed.get_rank() == 0:
        state_dict = model.state_dict()
    fully_shard(model)
    on_meta = [
        m
        for m in model.modules()
        if any(t.is_meta for t in (*m.parameters(), *m.buffers()))
    ]
    for module in on_meta:
        fill(module)
    if use_another_rank or config.low_cpu_fsdp:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, state_dict, options=options)
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
    return model
""")


@pytest.mark.parametrize("name", CASES)
def test_what_a_maintainer_reads(name: str, tmp_path: Path) -> None:
    before, expected = CASES[name]
    first = expected.splitlines(keepends=True)[0]
    assert rewritten(before, first, tmp_path) == expected


@pytest.mark.parametrize("sync", ["", ", sync_module_states=True"], ids=["drawn", "from rank 0"])
def test_first_values_that_are_drawn_for_shards_are_announced(sync: str, tmp_path: Path) -> None:
    text = f"""\
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with torch.device("meta"):
        model = Net()
    model = FSDP(model{sync})
    """
    program = analysed(tmp_path, text, "torch")
    [own] = [each.message for each in program.findings if each.code == "FSDP002"]
    assert ("random initial values differ from FSDP1's" in own) is (not sync)
    assert ("reset_parameters()" in program.after["train.py"]) is (not sync)


@pytest.mark.parametrize("group", ["", ", process_group=group"], ids=["all ranks", "a group"])
def test_values_that_rank_0_sends_to_other_groups_are_announced(group: str, tmp_path: Path) -> None:
    text = f"""\
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with torch.device("meta"):
        model = Net()
    model = FSDP(model, sync_module_states=True{group})
    """
    program = analysed(tmp_path, text, "torch")
    [own] = [each.message for each in program.findings if each.code == "FSDP208"]
    assert ("the first rank of each group" in own) is bool(group)
