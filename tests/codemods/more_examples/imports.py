"""Programs for the rules on imports, names and comments."""

from ..pages import Example, bridged

ALSO = {
    "FSDP001": (
        bridged(
            "a fallback",
            """\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None
""",
        ),
    ),
    "FSDP018": (
        bridged(
            "an isinstance test",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if isinstance(model, FSDP):
    print("sharded")
""",
        ),
    ),
}


QUIET: dict[str, tuple[Example, ...]] = {}
