"""Small FSDP1 training programs at random, of the models of ``nets``; a seed names one."""

from dataclasses import dataclass
from random import Random

POLICIES = {
    "Transformer": (
        "ModuleWrapPolicy({Block})",
        "ModuleWrapPolicy([Attention, Block])",
        "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "functools.partial(size_based_auto_wrap_policy, min_num_params=1000)",
        "functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear))",
        "CustomPolicy(lambda m: isinstance(m, Block))",
    ),
    "ConvNet": (
        "functools.partial(size_based_auto_wrap_policy, min_num_params=300)",
        "ModuleWrapPolicy({nn.Sequential})",
    ),
    "Stack": ("ModuleWrapPolicy({nn.Sequential})", "always_wrap_policy"),
}
POLICIES["Tied"] = POLICIES["Transformer"][:3]
_OF_BLOCKS = ("Tied", "Transformer")
OPTIONS = {
    "sharding_strategy": (
        "ShardingStrategy.FULL_SHARD",
        "ShardingStrategy.SHARD_GRAD_OP",
        "ShardingStrategy.NO_SHARD",
        "None",
        "{'zero2': ShardingStrategy.SHARD_GRAD_OP}[kind]",
        "ShardingStrategy.HYBRID_SHARD",
        "ShardingStrategy._HYBRID_SHARD_ZERO2",
    ),
    "mixed_precision": (
        "MixedPrecision(param_dtype=torch.bfloat16)",
        "MixedPrecision(torch.bfloat16, torch.float32)",
        "MixedPrecision(reduce_dtype=torch.bfloat16)",
        "MixedPrecision(torch.bfloat16, torch.bfloat16, cast_forward_inputs=True)",
        "precision",
        "None",
    ),
    "backward_prefetch": (
        "BackwardPrefetch.BACKWARD_PRE",
        "BackwardPrefetch.BACKWARD_POST",
        "None",
    ),
    "forward_prefetch": ("True", "False"),
    "limit_all_gathers": ("True", "False"),
    "sync_module_states": ("True", "False"),
    "cpu_offload": ("CPUOffload(offload_params=False)", "None"),
    "device_id": ("torch.device('cpu')", "torch.cuda.current_device()"),
    "process_group": ("dist.group.WORLD", "None"),
    "device_mesh": ("init_device_mesh('cpu', (2,))",),
    "ignored_modules": ("None", "[list(model.children())[-1]]"),
}
BEFORE = (
    "model.requires_grad_(True)",
    "next(model.parameters()).requires_grad_(False)",
    "count = sum(p.numel() for p in model.parameters())\nout.append(count)",
    "model = torch.nn.Sequential(model)",
    "for module in model.modules():\n    if isinstance(module, nn.Linear):\n        nn.init.xavier_uniform_(module.weight)",
    "for p in model.parameters():\n    p.kept = True",
    "model.unused = nn.Linear(3, 3)",
)
# What is computed again in backward, before or after it is sharded: around units, in them, or both.
CHECKPOINTS = (
    "apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, (Block, nn.Sequential)))",
    "apply_activation_checkpointing(model, functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT), lambda m: isinstance(m, nn.Linear))",
)
# Compiled before or after it is sharded: parts of it, it as another module, or itself.
BLOCKS_COMPILED = "for block in model.blocks:\n    block.compile(backend='eager')"
COMPILED = ("model = torch.compile(model, backend='eager')", "model.compile(backend='eager')")
# A second model beside it: what is built, what is done with it in each step, and at the end of one.
SECOND = (
    (
        "other = FSDP(copy.deepcopy(model), GIVEN)\nother.requires_grad_(False)",
        "",
        "with torch.no_grad():\n    for mean, p in zip(other.parameters(), model.parameters()):\n        mean.mul_(0.5).add_(p, alpha=0.5)\n    out.append(loss_of(other).item())",
    ),
    (
        "other = FSDP(MODEL(), GIVEN).eval()",
        "batch = MODEL.batch(generator)\nwith torch.no_grad():\n    target = other(*batch)\n(model(*batch).float() - target.float()).pow(2).mean().backward()",
        "",
    ),
    (
        "other = FSDP(MODEL(), GIVEN)\nsecond = torch.optim.SGD(other.parameters(), lr=0.01)",
        "loss_of(other).backward()",
        "second.step()\nsecond.zero_grad()\nout.append(loss_of(other).item())",
    ),
    (
        "other = FSDP(MODEL(), GIVEN)\nsecond = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.01)",
        "(loss_of(model) + loss_of(other)).backward()",
        "second.step()\nother.zero_grad()\nout.append(loss_of(other).item())",
    ),
)
OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
    "torch.optim.SGD([{'params': [p]} for p in model.parameters()], lr=0.02)",
    "torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3)",
    "torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3, eps=1e-3)",
)
CLIPS = (
    "out.append(float(model.clip_grad_norm_(0.05)))",
    "norm = model.clip_grad_norm_(max_norm=0.1, norm_type=2.0)\nout.append(norm.item())",
    "model.clip_grad_norm_(0.01, float('inf'))",
    "FSDP.clip_grad_norm_(model, 0.05)",
)
FULL = "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
# Names of flat parameters are FSDP1's own: where they are printed they differ, where they decide the tool says so.
_NAMES = (
    "out += [name.replace('_fsdp_wrapped_module.', '') for name, _ in model.named_parameters()]"
)
_DECIDING = "rest = [p for name, p in model.named_parameters() if name.endswith('bias')]\nout.append(len(rest))"
USES = (
    f"with FSDP.state_dict_type(model, {FULL}):\n    state = model.state_dict()\nif dist.get_rank() == 0:\n    out += sums(state)",
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    out += sums(model.state_dict())",
    "state = model.state_dict()\nout += sums(state)\nmodel.load_state_dict(state)",
    "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    state = model.state_dict()\n    model.load_state_dict(state)\nout += sorted(state)",
    "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False))\nout += sums(model.state_dict())",
    "states = FSDP.optim_state_dict(model, optimizer)\nout += sorted(map(str, states['state']))",
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    states = FSDP.optim_state_dict(model, optimizer)\n    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))",
    "states = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)\nout += sorted(map(str, states['state']))",
    "with FSDP.summon_full_params(model, writeback=False):\n    out += [float(p.float().sum()) for p in model.parameters()]",
    "with FSDP.summon_full_params(model):\n    for p in model.parameters():\n        p.data.mul_(0.5)",
    "out.append(sum(isinstance(module, FSDP) for module in model.modules()))",
    "out.append(len(FSDP.fsdp_modules(model)))",
    _NAMES,
    _DECIDING,
    "model.eval()\nwith torch.no_grad():\n    out.append(loss_of(model).item())\nmodel.train()",
    "out += [float(b.float().sum()) for b in model.buffers()]",
    "out.append(type(model.module).__name__)",
    "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nscheduler.step()",
    "for group in optimizer.param_groups:\n    group['lr'] *= 0.5",
    "model.apply(lambda module: seen.append(type(module).__name__))",
    "model.apply(lambda module: seen.extend(p.numel() for p in module.parameters(recurse=False)))",
    "out.append(model.rank)",
    "dist.barrier(model.process_group)\nout.append(hasattr(model, 'no_sync'))",
    "for p in model.parameters():\n    p.data = p.data * 0.5",
    "with torch.no_grad():\n    loss_of(model)\n    for p in model.parameters():\n        p.mul_(0.5)",
    "out.append(sum(type(module).__name__ == 'Block' for module in model.modules()))",
    "out.append(all(hasattr(p, 'kept') for p in model.parameters()))",
    f"with FSDP.state_dict_type(model, {FULL}):\n    state = model.state_dict()\nif dist.get_rank() == 0:\n    fresh = MODEL()\n    out.append(str(fresh.load_state_dict(state, strict=False)))\n    out += sums(fresh.state_dict())",
    "with torch.no_grad():\n    total = torch.zeros(())\n    for p in model.parameters():\n        if p.grad is not None:\n            total += p.grad.norm() ** 2\nout.append(total.item())",
    "loss_of(model).backward()\nfor p in model.parameters():\n    p.grad = None",
    "torch.manual_seed(step)\nout.append(torch.rand(()).item())",
)
_COUNTING = (
    "out.append(sum(isinstance(module, FSDP) for module in model.modules()))",
    "out.append(len(FSDP.fsdp_modules(model)))",
)
# What is saved is loaded into a model and an optimizer that are built again.
RESUMED = (
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    state, states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)\nmodel, optimizer = build()\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    model.load_state_dict(state)\n    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))",
    "state, states = copy.deepcopy(model.state_dict()), FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)\nmodel, optimizer = build()\nmodel.load_state_dict(state)\noptimizer.load_state_dict(FSDP.shard_full_optim_state_dict(states, model))",
    "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    saved = {'model': model.state_dict(), 'optim': FSDP.optim_state_dict(model, optimizer)}\n    folder = [tempfile.mkdtemp()]\n    dist.broadcast_object_list(folder)\n    dcp.save(saved, checkpoint_id=folder[0])\nmodel, optimizer = build()\nwith FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    fresh = {'model': model.state_dict()}\n    dcp.load(fresh, checkpoint_id=folder[0])\n    model.load_state_dict(fresh['model'])",
    "kept = io.BytesIO()\ntorch.save((model.state_dict(), optimizer.state_dict()), kept)\nmodel, optimizer = build()\nstate, states = torch.load(io.BytesIO(kept.getvalue()), weights_only=False)\nmodel.load_state_dict(state)\noptimizer.load_state_dict(states)",
)
TEMPLATE = """\
import contextlib
import copy
import functools
import io
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
    wrap,
)
from nets import Attention, Block, ConvNet, Stack, Tied, Transformer  # with BatchNorm

kind = "zero2"


def sums(state):
    return [(name, float(value.float().sum())) for name, value in sorted(state.items())]


def main():
    out, seen = [], []
    precision = MixedPrecision(torch.bfloat16, buffer_dtype=torch.float32)
    torch.manual_seed(SEED)
BUILD
    generator = torch.Generator().manual_seed(100 + dist.get_rank())

    def loss_of(model):
        return model(*MODEL.batch(generator)).float().pow(2).mean()

    for step in range(STEPS):
        optimizer.zero_grad()
LOOP
        optimizer.step()
        out.append(loss.item())
AFTER
        if step == WHEN:
            pass
USES
    return out + seen
"""
_LOOPS = (
    "loss = loss_of(model)\nloss.backward()",
    "with model.no_sync():\n    loss_of(model).backward()\nloss = loss_of(model)\nloss.backward()",
    "for micro in range(3):\n    with model.no_sync() if micro < 2 else contextlib.nullcontext():\n        loss = loss_of(model)\n        loss.backward()",
    "for micro in range(2):\n    context = contextlib.nullcontext if micro else model.no_sync\n    with context():\n        loss = loss_of(model)\n        loss.backward()",
)


@dataclass(frozen=True)
class Program:
    """A program whose `main` returns what it saw: losses, norms, sums of its states, names.

    Attributes:
        tolerance: how far FSDP1's and FSDP2's numbers may be apart: 0 where both do the same sums in the same order.
    """

    source: str
    tolerance: float


def program(rng: Random) -> Program:
    model = rng.choice(sorted(POLICIES))
    options, by_hand = _options(rng, model)
    before = [rng.choice(BEFORE)] if rng.random() < 0.4 else []
    if model in _OF_BLOCKS:  # they take two inputs
        before = [each for each in before if "Sequential" not in each]
    if any("requires_grad_(False)" in each for each in before):
        options["use_orig_params"] = (
            "True"  # else FSDP1 takes no unit of frozen and other parameters
        )
    rng.shuffle(items := list(options.items()))
    given = ", ".join(f"{name}={value}" for name, value in items)
    build = _build(rng, given, by_hand)
    loop = rng.choice((_LOOPS[0], *_LOOPS))
    clip = rng.choice(CLIPS) if rng.random() < 0.4 else ""
    uses = rng.sample(USES, rng.randint(0, 4))
    if options["use_orig_params"] == "False":
        uses = [
            use for use in uses if "p.data =" not in use
        ]  # under NO_SHARD FSDP1 goes on with the flat one
        uses = [_DECIDING if use == _NAMES else use for use in uses]
    if "always_wrap_policy" in given:  # FSDP1 also wrapped containers, to no effect
        uses = [use for use in uses if use not in _COUNTING]
    optimizer = f"optimizer = {rng.choice(OPTIMIZERS)}"
    is_older = options["use_orig_params"] == "True" and rng.random() < 0.1
    made = [optimizer, build] if is_older else [build, optimizer]
    _add_around(rng, made, build, model)
    kind, after = rng.choice(("", "", "", "second", "resumed")), ""
    if kind == "second":
        other, each_step, after = rng.choice(SECOND)
        made.insert(0, other.replace("GIVEN", given))
        loop = f"{each_step}\n{loop}"
    built = _indented(["model = MODEL()", *before, *made], 1)
    if kind == "resumed":
        built = _indented([f"def build():\n{built}\n    return model, optimizer"], 1)
        built += "\n\n    model, optimizer = build()"
        uses.insert(rng.randint(0, len(uses)), rng.choice(RESUMED))
    source = TEMPLATE.replace("BUILD", built).replace("LOOP", _indented([loop, clip], 2))
    source = source.replace("AFTER", _indented([after], 2)).replace("USES", _indented(uses, 3))
    source = source.replace("STEPS", str(rng.randint(2, 3))).replace("WHEN", str(rng.randint(0, 1)))
    source = source.replace("SEED", str(rng.randrange(100))).replace("MODEL", model)
    # Under FSDP2 a layer that is used twice adds up its own gradients before those of the next micro-batch.
    adds_up = loop != _LOOPS[0]
    twice = model == "Stack" and adds_up
    rounds = adds_up and ("mixed_precision" in options or "NO_SHARD" in given)
    exact = not (clip or rounds or twice)
    return Program(source, 0.0 if exact else 2e-2 if "mixed_precision" in options else 1e-5)


def _options(rng: Random, model: str) -> tuple[dict[str, str], bool]:
    """The arguments of a constructor, and whether there are units by hand below it."""
    names = rng.sample(sorted(OPTIONS), rng.randint(0, 4))
    options = {name: rng.choice(OPTIONS[name]) for name in names}
    by_hand = model in _OF_BLOCKS and rng.random() < 0.2
    if rng.random() < 0.8 and not by_hand:  # FSDP1 takes no policy above units that are there
        options["auto_wrap_policy"] = rng.choice(POLICIES[model])
    options["use_orig_params"] = rng.choice(("True", "True", "False"))
    if "HYBRID" in options.get("sharding_strategy", ""):
        options["device_mesh"] = "init_device_mesh('cpu', (1, 2))"
    if "device_mesh" in options:  # it is the group
        options.pop("process_group", None)
    return options, by_hand


def _build(rng: Random, given: str, by_hand: bool) -> str:
    """What shards a model, in one of the ways that programs write it."""
    build = rng.choice(
        (
            f"model = FSDP(model, {given})",
            f"options = dict({given})\nmodel = FSDP(model, **options)",
            f"net = model\nmodel = FSDP(net, {given})",
            f"def shard(module):\n    return FSDP(module, {given})\n\nmodel = shard(model)",
            f"shard = functools.partial(FSDP, {given})\nmodel = shard(model)",
            f"with enable_wrap(wrapper_cls=FSDP, {given}):\n    model = wrap(model)",
        )
    )
    if by_hand:
        part = rng.choice(("model.blocks[i]", "model.blocks[i].attn"))
        build = f"for i in range(2):\n    {part} = FSDP({part}, {given})\n{build}"
    return build


def _add_around(rng: Random, made: list[str], build: str, model: str) -> None:
    """Adds what is computed again in backward, and what is compiled, before the model is sharded or behind it."""
    if rng.random() < 0.3:
        made.insert(rng.choice((0, made.index(build) + 1)), rng.choice(CHECKPOINTS))
    if rng.random() < 0.15:
        made.insert(made.index(build) + 1, rng.choice(COMPILED))
    elif model in _OF_BLOCKS and rng.random() < 0.1:
        made.insert(0, BLOCKS_COMPILED)


def _indented(parts: list[str], depth: int) -> str:
    lines = [line for part in parts for line in part.split("\n") if part]
    return "\n".join(" " * 4 * depth + line if line else "" for line in lines)
