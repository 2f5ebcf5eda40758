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

QUIET = {
    "FSDP001": (
        Example(
            "code for a release that is older than FSDP2",
            """\
import torch
from packaging import version

if version.parse(torch.__version__) < version.parse("2.1"):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
else:
    from modern import FSDP
""",
        ),
    ),
}
