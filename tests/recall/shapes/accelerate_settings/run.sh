accelerate launch --config_file fsdp.yaml train.py --fsdp_sharding_strategy mine
torchrun own.py --fsdp_offload_params true
FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP
python own.py --strategy $FSDP_SHARDING_STRATEGY
