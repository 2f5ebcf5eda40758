import functools
import inspect
from typing import Any, Dict, List, Optional, Union

import torch
import torch.nn as nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp.fully_sharded_data_parallel import (
    BackwardPrefetch, CPUOffload, FullStateDictConfig,
    FullyShardedDataParallel, LocalStateDictConfig, MixedPrecision,
    ShardingStrategy, StateDictConfig, StateDictType)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from .registry import FUNCTIONS, MODEL_WRAPPERS

FUNCTIONS.register_module("size_based_auto_wrap_policy")(size_based_auto_wrap_policy)


@MODEL_WRAPPERS.register_module()
class MMFullyShardedDataParallel(FullyShardedDataParallel):
    """A wrapper for sharding Module parameters across data parallel workers.

    Args:
        module (nn.Module): module to be wrapped with FSDP.
        sharding_strategy (str or ShardingStrategy, optional)
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Optional[ProcessGroup] = None,
        sharding_strategy: Optional[Union[str, ShardingStrategy]] = None,
        cpu_offload: Optional[Union[bool, CPUOffload]] = None,
        auto_wrap_policy: Optional[Union[str, Dict[str, Any]]] = None,
        backward_prefetch: Optional[Union[str, BackwardPrefetch]] = None,
        mixed_precision: Optional[Union[dict, MixedPrecision]] = None,
        param_init_fn=None,
        use_orig_params: bool = True,
        **kwargs,
    ):
        if isinstance(sharding_strategy, str):
            sharding_strategy = ShardingStrategy[sharding_strategy]
        if not (isinstance(sharding_strategy, ShardingStrategy) or sharding_strategy is None):
            raise TypeError(
                '`sharding_strategy` should be `None`, string of `ShardingStrategy` names, '
                f'but has type {type(sharding_strategy)}')
        if isinstance(cpu_offload, bool):
            cpu_offload = CPUOffload(offload_params=cpu_offload)
        if isinstance(auto_wrap_policy, dict):
            args = dict(auto_wrap_policy)
            policy = FUNCTIONS.get(args.pop("type"))
            auto_wrap_policy = functools.partial(policy, **args)
        if isinstance(backward_prefetch, str):
            backward_prefetch = BackwardPrefetch[backward_prefetch]
        if isinstance(mixed_precision, dict):
            mixed_precision = MixedPrecision(**{k: getattr(torch, v) for k, v in mixed_precision.items()})
        super().__init__(
            module=module,
            process_group=process_group,
            sharding_strategy=sharding_strategy,
            auto_wrap_policy=auto_wrap_policy,
            cpu_offload=cpu_offload,
            backward_prefetch=backward_prefetch,
            mixed_precision=mixed_precision,
            param_init_fn=param_init_fn,
            device_id=torch.cuda.current_device(),
            use_orig_params=use_orig_params,
            **kwargs)

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            losses = self._run_forward(data, mode='loss')
        parsed_loss, log_vars = self.module.parse_losses(losses)
        optim_wrapper.update_params(parsed_loss)
        return log_vars

    def val_step(self, data):
        return self._run_forward(data, mode='predict')

    def _run_forward(self, data: Union[dict, tuple, list], mode: str) -> Any:
        if isinstance(data, dict):
            results = self(**data, mode=mode)
        elif isinstance(data, (list, tuple)):
            results = self(*data, mode=mode)
        else:
            raise TypeError()
        return results

    @staticmethod
    def set_state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        return FullyShardedDataParallel.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
