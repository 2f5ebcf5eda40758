from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

CFG = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
OPT = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)


def full_state(model, optim):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, CFG, OPT):
        return model.state_dict(), FSDP.optim_state_dict(model, optim)


def load_full_state(model, optim, msd, osd):
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=False),
        FullOptimStateDictConfig(rank0_only=False),
    ):
        model.load_state_dict(msd)
        optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd))
