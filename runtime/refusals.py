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
            f"{name} is private to FSDP1 and FSDP2 has no such part",
            "the parameters are DTensors: p.to_local() is this rank's shard, p.full_tensor() the whole; unshard() and "
            "reshard() gather and free one unit",
        )


class PartOfShardedTensor(UnsupportedInFSDP2, AttributeError):
    """A method of FSDP1's ShardedTensor, asked of a DTensor; ``hasattr`` answers False."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "FSDP524",
            f"{name} is a part of ShardedTensor, and sharded state dicts of FSDP2 hold DTensors",
            "value.to_local() is this rank's shard, value.full_tensor() the whole",
        )


# What programs reach for in FSDP1's wrapper.
PRIVATE_PARTS = {
    "_all_fsdp_states", "_all_handles", "_assert_state", "_comm_hook", "_comm_hook_state",
    "_exec_order_data", "_flat_param", "_free_event_queue", "_fsdp_extension",
    "_fully_sharded_module_to_handle", "_handle", "_handles", "_has_params", "_lazy_init",
    "_pre_unshard_stream", "_reset_lazy_init", "_streams", "_sync_gradients", "_unshard",
    "_unshard_event", "_unshard_stream", "_wait_unshard_streams_on_current_stream", "params",
}  # fmt: skip
