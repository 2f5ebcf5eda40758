from subprocess import run


def test_trains(tmp_path):
    settings = {
        "base_model": "x",
        "optimizer": "paged_adamw_8bit",  # FSDP803
        "fsdp": ["full_shard"],
        "fsdp_config": {"fsdp_offload_params": True},  # FSDP803
    }
    run(["axolotl", "train", write(settings)])
