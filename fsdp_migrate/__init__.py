"""fsdp-migrate: rewrites PyTorch FSDP1 programs for FSDP2 and proves that they still train the same."""

__version__ = "0.1.0"
