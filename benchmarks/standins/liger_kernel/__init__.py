"""Stands in for Liger's kernels."""
