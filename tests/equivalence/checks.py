"""Checks without FSDP1 beside them."""
CHECKS = {}
