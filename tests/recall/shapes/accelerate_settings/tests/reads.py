import pytest
from axolotl.utils.config import validate_config


def test_refuses():
    with pytest.raises(ValueError, match="needs version 2"):
        validate_config({"base_model": "x", "fsdp": ["full_shard"], "fsdp_config": {"fsdp_offload_params": True}})
