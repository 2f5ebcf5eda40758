"""Wrap policies, and annotations of modules to wrap: torch's own, which activation checkpointing uses as well.

A policy is either an object with ``_run_policy``, which picks modules by looking at the whole tree, or a function
that is asked twice about a module: ``recurse=True``: look at its children? ``recurse=False``: make it a unit, given
that ``nonwrapped_numel`` parameter elements of it are not in a unit yet?
"""

from torch.distributed.fsdp.wrap import *  # noqa: F403
from torch.distributed.fsdp.wrap import _module_wrap_policy as _module_wrap_policy
from torch.distributed.fsdp.wrap import _or_policy as _or_policy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

# The name of torch 1.11.
default_auto_wrap_policy = size_based_auto_wrap_policy
