"""Stands in for tensor_parallel, which the DPO trainer imports and does not use with FSDP."""
