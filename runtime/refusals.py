"""What no FSDP2 program can have: an error where it is used, with the rule that explains it."""

from __future__ import annotations


class UnsupportedInFSDP2(NotImplementedError):
    """A part of FSDP1 that has no counterpart; ``code`` is the rule for ``fsdp-migrate explain``."""

    def __init__(self, code: str, what: str, instead: str) -> None:
        super().__init__(f"{what}: {instead} (fsdp-migrate explain {code})")
        self.code = code


class PrivatePart(UnsupportedInFSDP2, AttributeError):
    """A private attribute of FSDP1's wrapper; ``hasattr`` answers False."""


# What programs reach for in FSDP1's wrapper.
PRIVATE_PARTS = frozenset(
    {
        "_all_fsdp_states",
        "_all_handles",
        "_comm_hook",
        "_comm_hook_state",
        "_exec_order_data",
        "_flat_param",
    }
    | {
        "_free_event_queue",
        "_fsdp_extension",
        "_fully_sharded_module_to_handle",
        "_handle",
        "_handles",
    }
    | {"_has_params", "_pre_unshard_stream", "_sync_gradients", "_unshard", "_unshard_event"}
    | {"_unshard_stream", "_wait_unshard_streams_on_current_stream", "params"}
)


def private_part(name: str) -> PrivatePart:
    """The error for ``model.<name>``."""
    return PrivatePart(
        "FSDP366",
        f"{name} is private to FSDP1 and FSDP2 has no such part",
        "the parameters are DTensors: p.to_local() is this rank's shard, p.full_tensor() the whole; unshard() and "
        "reshard() gather and free one unit",
    )


def comm_hook() -> UnsupportedInFSDP2:
    """The error for ``register_comm_hook``."""
    return UnsupportedInFSDP2(
        "FSDP361",
        "register_comm_hook() has no counterpart in FSDP2",
        "to compress gradients pass MixedPrecision(reduce_dtype=...); set_custom_reduce_scatter() and "
        "set_all_reduce_hook() change the communication itself",
    )


def given_to_c10d(operator: str) -> UnsupportedInFSDP2:
    """The error for ``dist.all_reduce(p.grad)`` and its like."""
    return UnsupportedInFSDP2(
        "FSDP508",
        f"torch.distributed takes no DTensor ({operator}), which a sharded model's parameters, gradients and their norms are",
        "give it this rank's part, as FSDP1 did: local_shard(p) of fsdp_migrate.runtime, or p.to_local()",
    )


def local_state_dict() -> UnsupportedInFSDP2:
    """The error for ``LOCAL_STATE_DICT``."""
    return UnsupportedInFSDP2(
        "FSDP334",
        "LOCAL_STATE_DICT is FSDP1's flat parameters, which FSDP2 does not have",
        "load such a checkpoint with FSDP1 on the same number of ranks, and save it as FULL_STATE_DICT "
        "or SHARDED_STATE_DICT",
    )
