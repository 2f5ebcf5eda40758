"""What no FSDP2 program can have: an error where it is used, with the rule that explains it."""


class UnsupportedInFSDP2(NotImplementedError):
    """A part of FSDP1 that has no counterpart; ``code`` is the rule for ``fsdp-migrate explain``."""

    def __init__(self, code: str, what: str, instead: str) -> None:
        super().__init__(f"{what}: {instead} (fsdp-migrate explain {code})")
        self.code = code


class PrivatePart(UnsupportedInFSDP2, AttributeError):
    """A private attribute of FSDP1's wrapper; ``hasattr`` answers False."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "FSDP366",
            f"{name} is a private attribute of FSDP1, which FSDP2 does not have",
            "parameters are DTensors, use p.to_local() for this rank's shard and p.full_tensor() for the whole parameter; use "
            "unshard() and reshard() to gather and free a unit",
        )


class PartOfShardedTensor(UnsupportedInFSDP2, AttributeError):
    """A method of FSDP1's ShardedTensor, asked of a DTensor; ``hasattr`` answers False."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "FSDP524",
            f"{name} is a method of ShardedTensor, but FSDP2's sharded state dicts hold DTensors",
            "use value.to_local() for this rank's shard and value.full_tensor() for the whole tensor",
        )


# What programs reach for in FSDP1's wrapper.
PRIVATE_PARTS = {
    "_all_fsdp_states", "_all_handles", "_assert_state", "_comm_hook", "_comm_hook_state",
    "_exec_order_data", "_flat_param", "_free_event_queue", "_fsdp_extension",
    "_fully_sharded_module_to_handle", "_handle", "_handles", "_has_params", "_lazy_init",
    "_pre_unshard_stream", "_reset_lazy_init", "_streams", "_sync_gradients", "_unshard",
    "_unshard_event", "_unshard_stream", "_wait_unshard_streams_on_current_stream", "params",
}  # fmt: skip
