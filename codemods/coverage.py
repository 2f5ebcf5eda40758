"""Every construct of FSDP1, as a line of a program: what the table of coverage is made from.

A row is code and nothing else. What becomes of it, and by which rule, is asked of the tool itself (`views/coverage.py`), so
the table cannot say what the tool does not do. Only where no rule speaks of a construct does its row say why.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.index.names import KINDS, PACKAGE, Kind


@dataclass(frozen=True)
class Row:
    """One construct.

    Attributes:
        code: the construct, as a program writes it.
        same: why there is nothing to do, where no rule speaks of it.
        missing: what goes wrong, where a rule should speak of it and none does.
    """

    code: str
    same: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Section:
    """Constructs that stand in the same place of a program.

    Attributes:
        place: the statement around a construct, with `ROW` for the construct itself.
        before: the statements in front of it.
    """

    title: str
    rows: tuple[Row, ...]
    place: str = "ROW"
    before: str = ""

    def program(self, row: Row) -> tuple[str, int]:
        """A whole module that uses a construct, and the line on which its statement begins."""
        statement = self.place.replace("ROW", row.code)
        head = "\n".join([*imports(f"{self.before}\n{statement}"), self.before])
        return f"{head}\n{statement}\n", head.count("\n") + 2


_OTHERS = {
    "Attention": "from model import Attention",
    "Block": "from model import Block",
    "dcp": "import torch.distributed.checkpoint as dcp",
    "default_hooks": "from torch.distributed.algorithms._comm_hooks import default_hooks",
    "dist": "import torch.distributed as dist",
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "nn": "from torch import nn",
    "partial": "from functools import partial",
    "torch": "import torch",
}
_SUBMODULES = {Kind.POLICY: ".wrap", Kind.WRAP: ".wrap", Kind.SCALER: ".sharded_grad_scaler"}


def imports(code: str) -> list[str]:
    """The import statements that a piece of a program needs."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines = [line for name, line in _OTHERS.items() if name in used]
    if "FSDP" in used:
        lines.append(f"from {PACKAGE} import FullyShardedDataParallel as FSDP")
    for name, kind in KINDS.items():
        if name in used:
            lines.append(f"from {PACKAGE}{_SUBMODULES.get(kind, '')} import {name}")
    return lines


def _rows(*codes: str | Row) -> tuple[Row, ...]:
    return tuple(Row(code) if isinstance(code, str) else code for code in codes)


_ARGUMENT = """\
model = FSDP(
    model,
    ROW,
)"""
_POLICY = """\
model = FSDP(
    model,
    auto_wrap_policy=ROW,
)"""
_MESH_2D = 'init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))'
_BF16 = "param_dtype=torch.bfloat16"

SECTIONS = (
    Section(
        "Names",
        _rows(
            "model = FSDP(model)",
            "model = FSDP(model, **options)",
            "shard = partial(FSDP, sharding_strategy=strategy)",
            "class Sharded(FSDP):\n    pass",
            "if isinstance(model, FSDP):\n    pass",
            "def train(model: FSDP):\n    pass",
            "if type(model) is FSDP:\n    pass",
            'WRAPPERS = {"fsdp": FSDP}',
            "strategy = ShardingStrategy.FULL_SHARD",
            "strategy = ShardingStrategy[args.strategy]",
            "prefetch = BackwardPrefetch.BACKWARD_PRE",
            "precision = MixedPrecision(param_dtype=torch.bfloat16)",
            "offload = CPUOffload(offload_params=True)",
            "kind = StateDictType.FULL_STATE_DICT",
            "kind = StateDictType.SHARDED_STATE_DICT",
            "kind = StateDictType.LOCAL_STATE_DICT",
            "StateDictSettings(state_dict_type=kind, state_dict_config=config, optim_state_dict_config=optim_config)",
            "config = StateDictConfig(offload_to_cpu=True)",
            "config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)",
            "config = ShardedStateDictConfig(offload_to_cpu=True, _use_dtensor=True)",
            "config = LocalStateDictConfig(offload_to_cpu=True)",
            "config = OptimStateDictConfig(offload_to_cpu=True)",
            "config = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)",
            "config = ShardedOptimStateDictConfig(offload_to_cpu=True, _use_dtensor=True)",
            "config = LocalOptimStateDictConfig(offload_to_cpu=False)",
            "key_type = OptimStateKeyType.PARAM_NAME",
            "key_type = OptimStateKeyType.PARAM_ID",
            "scaler = ShardedGradScaler()",
        ),
    ),
    Section(
        "Private names",
        _rows(
            f"from {PACKAGE} import FlatParameter\nisinstance(parameter, FlatParameter)",
            f"from {PACKAGE}.fully_sharded_data_parallel import FlatParamHandle\nuse(FlatParamHandle)",
            f"from {PACKAGE}.fully_sharded_data_parallel import TrainingState\nuse(TrainingState)",
            f"from {PACKAGE}.fully_sharded_data_parallel import HandleTrainingState\nuse(HandleTrainingState)",
            f"from {PACKAGE}._runtime_utils import _lazy_init\n_lazy_init(model, model)",
            f"from {PACKAGE}._common_utils import clean_tensor_name\nname = clean_tensor_name(name)",
            f"from {PACKAGE}._common_utils import _is_fsdp_flattened\n_is_fsdp_flattened(parameter)",
            f"from {PACKAGE}._common_utils import _get_module_fsdp_state\n_get_module_fsdp_state(module)",
            f"from {PACKAGE}._fsdp_extensions import _set_fsdp_extensions\n_set_fsdp_extensions(extensions)",
            f"from {PACKAGE}.wrap import _recursive_wrap\n_recursive_wrap(model, policy, FSDP, set(), set())",
            "from torch.distributed.tensor.parallel.fsdp import DTensorExtensions\nuse(DTensorExtensions)",
        ),
    ),
    Section(
        "Policies",
        _rows(
            "None",
            "ModuleWrapPolicy({Block, Attention})",
            "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
            "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block))",
            "partial(lambda_auto_wrap_policy, lambda_fn=decide)",
            "partial(size_based_auto_wrap_policy, min_num_params=100_000)",
            "partial(size_based_auto_wrap_policy, min_num_params=100, force_leaf_modules={Block})",
            "partial(size_based_auto_wrap_policy, min_num_params=100, exclude_wrap_modules={Block})",
            "size_based_auto_wrap_policy",
            "default_auto_wrap_policy",
            "CustomPolicy(decide)",
            "always_wrap_policy",
            "partial(_module_wrap_policy, module_classes={Block})",
            "partial(_or_policy, policies=[by_class, by_lambda])",
            "build_policy(config)",
        ),
        _POLICY,
    ),
    Section(
        "Wrapping by hand",
        _rows(
            "with enable_wrap(wrapper_cls=FSDP, process_group=group):\n    layer = wrap(layer)",
            "layer = wrap(layer)",
            "layer = FSDP(layer, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
            Row(
                "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (\n"
                "    apply_activation_checkpointing,\n)\napply_activation_checkpointing(model)",
                same="not a part of FSDP1; works with fully_shard in any order",
            ),
        ),
    ),
    Section(
        "Methods and attributes",
        _rows(
            "model.module",
            "model._fsdp_wrapped_module",
            "model.forward(batch)",
            Row("model(batch)", same="the model is called as before"),
            Row("model[0]", same="the model is the module itself, so no proxy is needed"),
            "model.check_is_root()",
            "FSDP.fsdp_modules(model)",
            "FSDP.fsdp_modules(model, root_only=True)",
            "with FSDP.summon_full_params(model, writeback=False):\n    pass",
            "model.apply(initialize)",
            Row(
                "for name, parameter in model.named_parameters():\n    print(name)",
                same="the names have no prefix under either",
            ),
            Row("model.named_buffers()", same="the names have no prefix under either"),
            Row("torch.optim.AdamW(model.parameters())", same="an optimizer takes DTensors"),
            "sum(p.numel() for p in model.parameters())",
            "decayed = [p for p in model.parameters() if p.ndim > 1]",
            "norm = sum(p.grad.norm() ** 2 for p in model.parameters())",
            "arrays = [p.detach().numpy() for p in model.parameters()]",
            "[p.register_hook(print) for p in model.parameters()]",
            "[p.register_post_accumulate_grad_hook(step) for p in model.parameters()]",
            "[dist.all_reduce(p.grad) for p in model.parameters()]",
            "[p.main_grad for p in model.parameters()]",
            "torch.nn.utils.parameters_to_vector(model.parameters())",
            "torch.optim.swa_utils.AveragedModel(model)",
            "torch.distributed.optim._apply_optimizer_in_backward(\n"
            "    torch.optim.SGD, model.parameters(), {'lr': 0.1}\n)",
            "torch.optim.SGD(model.parameters(), lr=0.1, fused=True)",
            "torch.optim.Adafactor(model.parameters())",
            "model(batch)\noptimizer = torch.optim.AdamW(model.parameters())",
            Row(
                "average = [p.clone() for p in model.parameters()]",
                same="a copy of a shard is a shard",
            ),
            "with model.no_sync():\n    loss.backward()",
            "context = nullcontext if last else model.no_sync",
            "with FSDP.no_sync(model):\n    loss.backward()",
            "for batch in loader:\n    with model.no_sync():\n        loss.backward()\n    optimizer.step()\n"
            "optimizer.zero_grad()",
            "model.clip_grad_norm_(1.0)",
            "norm = model.clip_grad_norm_(1.0, norm_type=2.0)",
            'norm = model.clip_grad_norm_(1.0, norm_type=float("inf"))',
            "FSDP.clip_grad_norm_(model, 1.0)",
            "if isinstance(model, FSDP):\n    model.clip_grad_norm_(1.0)\nelse:\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            Row(
                "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
                same="each gradient is clipped by itself",
            ),
            "model.register_comm_hook(state, hook)",
            "model.register_comm_hook(state, default_hooks.bf16_compress_hook)",
            "scaler = ShardedGradScaler()",
            Row(
                "model.to(device)",
                same="moves the shards; fully_shard has moved the model already",
            ),
            'hasattr(model, "no_sync")',
            'type(model).__name__ == "FullyShardedDataParallel"',
            *(
                f"model.{name}"
                for name in (
                    "process_group",
                    "rank",
                    "world_size",
                    "sharding_strategy",
                    "mixed_precision",
                    "cpu_offload",
                    "compute_device",
                    "backward_prefetch",
                    "forward_prefetch",
                    "limit_all_gathers",
                    "params",
                    "training_state",
                    "_handle",
                    "_flat_param",
                    "_all_handles",
                    "_is_root",
                    "_has_params",
                )
            ),
            "model._handle.reshard(True)",
            "model._unshard()",
            "model._reset_lazy_init()",
        ),
        before="model = FSDP(model)",
    ),
    Section(
        "State dicts",
        _rows(
            "state = model.state_dict()",
            "model.load_state_dict(saved)",
            "model.load_state_dict(saved, strict=False)",
            "save = model.state_dict",
            *(
                f"with FSDP.state_dict_type(model, {kind}):\n    state = model.state_dict()"
                for kind in (
                    "StateDictType.FULL_STATE_DICT",
                    "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)",
                    "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=False)",
                    "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=False, rank0_only=True)",
                    "StateDictType.FULL_STATE_DICT, config",
                    "StateDictType.SHARDED_STATE_DICT",
                    "StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)",
                    "StateDictType.LOCAL_STATE_DICT",
                    "kind",
                )
            ),
            *(
                f"with FSDP.state_dict_type(model, StateDictType.{kind}):\n    model.load_state_dict(saved)"
                for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
            ),
            "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    trainer.save_model()",
            "with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):\n    state = optimizer.state_dict()",
            "context = FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)",
            "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)",
            "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\nstate = model.state_dict()",
            "FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)",
            "FSDP.get_state_dict_type(model)",
            "if rank == 0:\n    state = model.state_dict()",
            "model.save_pretrained(path)",
        ),
        before="model = FSDP(model)",
    ),
    Section(
        "States of optimizers",
        _rows(
            "state = FSDP.optim_state_dict(model, optimizer)",
            "state = FSDP.optim_state_dict(model, optimizer, group=group)",
            "state = FSDP.full_optim_state_dict(model, optimizer)",
            "state = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)",
            "state = FSDP.sharded_optim_state_dict(model, optimizer)",
            *(
                f"with FSDP.state_dict_type(model, StateDictType.{kind}):\n    state = FSDP.optim_state_dict(model, optimizer)"
                for kind in (
                    "FULL_STATE_DICT",
                    "FULL_STATE_DICT, None, FullOptimStateDictConfig(rank0_only=True)",
                    "FULL_STATE_DICT, None, FullOptimStateDictConfig(offload_to_cpu=False)",
                    "FULL_STATE_DICT, None, FullOptimStateDictConfig(False, True)",
                    "SHARDED_STATE_DICT",
                    "SHARDED_STATE_DICT, None, ShardedOptimStateDictConfig(offload_to_cpu=False)",
                )
            ),
            *(
                f"optimizer.load_state_dict(FSDP.{call})"
                for call in (
                    "optim_state_dict_to_load(model, optimizer, saved)",
                    "optim_state_dict_to_load(saved, model, optimizer)",
                    "shard_full_optim_state_dict(saved, model, optim=optimizer)",
                    "scatter_full_optim_state_dict(saved, model, optim=optimizer)",
                    "flatten_sharded_optim_state_dict(saved, model, optimizer)",
                    "rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_ID, model)",
                )
            ),
            "FSDP.optim_state_dict_to_load(model, optimizer, saved, load_directly=True)",
            "state = FSDP.optim_state_dict_to_load(model, optimizer, saved)",
            "state = FSDP.optim_state_dict_to_load(first, second, third)",
            Row(
                "state = optimizer.state_dict()",
                missing="a rank's shards, as DTensors: not to be mixed with files of FSDP1, nor with another number of ranks",
            ),
        ),
        before="model = FSDP(model)",
    ),
    Section(
        "torch.distributed.checkpoint",
        _rows(
            "dcp.save_state_dict(state, writer)",
            "dcp.load_state_dict(state_dict=state, storage_reader=reader, no_dist=True)",
            "dcp.save_state_dict(state, writer, coordinator_rank=1)",
            "saved = dcp.optimizer.load_sharded_optimizer_state_dict(state, key, reader)",
            Row("dcp.save(state, checkpoint_id=path)", same="writes the shards of either version"),
            "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
            "    torch.save(model.state_dict(), path)",
        ),
        before="model = FSDP(model)",
    ),
    Section(
        "Constructor arguments",
        _rows(
            "process_group=None",
            "process_group=dist.group.WORLD",
            "process_group=group",
            "process_group=(shard_group, replicate_group), sharding_strategy=ShardingStrategy.HYBRID_SHARD",
            "sharding_strategy=None",
            "sharding_strategy=ShardingStrategy.FULL_SHARD",
            "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
            "sharding_strategy=ShardingStrategy.NO_SHARD",
            "sharding_strategy=ShardingStrategy.HYBRID_SHARD",
            f"sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh={_MESH_2D}",
            f"sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_mesh={_MESH_2D}",
            "sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh",
            "sharding_strategy=STRATEGIES[args.strategy]",
            "cpu_offload=None",
            "cpu_offload=CPUOffload(offload_params=True)",
            "cpu_offload=CPUOffload(offload_params=False)",
            "cpu_offload=CPUOffload()",
            "cpu_offload=offload",
            "auto_wrap_policy=ModuleWrapPolicy({Block})",
            "fsdp_auto_wrap_policy=ModuleWrapPolicy({Block})",
            "backward_prefetch=BackwardPrefetch.BACKWARD_PRE",
            "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
            "backward_prefetch=None",
            "backward_prefetch=prefetch",
            "mixed_precision=None",
            "mixed_precision=MixedPrecision()",
            "mixed_precision=precision",
            f"mixed_precision=MixedPrecision({_BF16})",
            f"mixed_precision=MixedPrecision({_BF16}, reduce_dtype=torch.float32)",
            f"mixed_precision=MixedPrecision({_BF16}, buffer_dtype=torch.bfloat16)",
            f"mixed_precision=MixedPrecision({_BF16}, keep_low_precision_grads=False)",
            f"mixed_precision=MixedPrecision({_BF16}, keep_low_precision_grads=True)",
            f"mixed_precision=MixedPrecision({_BF16}, cast_forward_inputs=True)",
            f"mixed_precision=MixedPrecision({_BF16}, cast_root_forward_inputs=False)",
            f"mixed_precision=MixedPrecision({_BF16}, _module_classes_to_ignore=())",
            f"mixed_precision=MixedPrecision({_BF16}), auto_wrap_policy=ModuleWrapPolicy({{Block}})",
            "ignored_modules=None",
            "ignored_modules=[model.embedding]",
            "param_init_fn=None",
            "param_init_fn=initialize",
            "device_id=None",
            "device_id=torch.cuda.current_device()",
            "device_id=rank",
            'device_id=torch.device("cpu")',
            "sync_module_states=False",
            "sync_module_states=True",
            "forward_prefetch=False",
            "forward_prefetch=True",
            "limit_all_gathers=True",
            "limit_all_gathers=False",
            "use_orig_params=True",
            "use_orig_params=False",
            "ignored_states=None",
            "ignored_states=[model.head.weight]",
            "ignored_parameters=[model.head.weight]",
            "device_mesh=None",
            'device_mesh=init_device_mesh("cuda", (8,))',
            'device_mesh=mesh["dp"]',
            "device_mesh=mesh",
            "unknown=True",
        ),
        _ARGUMENT,
    ),
)
