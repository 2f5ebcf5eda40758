import os
import subprocess

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

os.environ["ACCELERATE_USE_FSDP"] = "true"  # FSDP805
os.environ.setdefault("FSDP_SHARDING_STRATEGY", "HYBRID_SHARD")  # FSDP805
os.environ.update(FSDP_USE_ORIG_PARAMS="true", FSDP_STATE_DICT_TYPE="FULL_STATE_DICT")  # FSDP805
os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
os.environ["FSDP_OWN"] = "1"
subprocess.run(["train.py"], env={"FSDP_SYNC_MODULE_STATES": "true"})  # FSDP805
