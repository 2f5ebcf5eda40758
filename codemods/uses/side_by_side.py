"""Models side by side: each is split over a group of ranks, which has a first rank of its own.

Torch gives whole tensors on the CPU to rank 0 of all ranks, and sends what rank 0 loads to all. Tensor parallelism by
DTensors is not meant: rank 0 has such a model as a whole.
"""

import ast
import re

from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.uses.first_of_all import is_for_first_of_all
from fsdp_migrate.codemods.uses.options import Setting, is_for_rank_0, values
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.nodes import any_is, has_double_star

_SPLIT = r"model_parallel|pipeline_parallel|get_data_parallel_(?:rank|group)"
_BY_DTENSORS = r"parallelize_module"
_GROUP = re.compile(r"\bprocess_group[\"']?\s*[:=]")
ON_EACH_DEVICE = (
    " Every rank gets whole tensors on its own device, and may run out of memory. If only global rank 0 uses them, add "
    "`cpu_offload=True`, which returns them on that rank alone. Otherwise, as groups of ranks have models of their own "
    "here, gather one tensor at a time with `full_tensor()` on the values of `model.state_dict()`."
)


def is_side_by_side(context: Context) -> bool:
    """Whether rank 0 of a model may be another rank than the first of all."""
    paths = context.program.reach.of(context.file.path)
    loaded = [context.program.load(path) for path in paths if context.program.mentions(path)]
    files = [file for file in loaded if file is not None]
    constructors = models_of(context.program).constructors
    makers = [(file, call) for file in files for call in constructors(file)]
    if not makers:
        return re.search(_SPLIT, context.file.text) is not None
    if context.program.calls(_BY_DTENSORS):
        words = _SPLIT
    else:
        words = f"{_SPLIT}|tensor_parallel"
    if not any(re.search(words, file.text) for file in files):
        return False
    return any(_has_group(context, file, call) for file, call in makers)


def options_to_get(context: Context, call: ast.Call, how: Setting) -> tuple[str, bool]:
    """The options for getting a state dict, and whether every rank gets it on its device for others than the first of all."""
    for_rank_0 = is_for_rank_0(context, call)
    options = how.to_get(for_rank_0=for_rank_0, side_by_side=False)
    if not is_side_by_side(context) or is_for_first_of_all(context, call):
        return options, False
    on_device = how.to_get(for_rank_0=for_rank_0, side_by_side=True)
    return on_device, on_device != options


def _has_group(context: Context, file: File, call: ast.Call) -> bool:
    """Whether a constructor is given a group of ranks, or one dimension of a mesh."""
    if keyword(call, "process_group", SIGNATURE.index("process_group")) is not None:
        return True
    if has_double_star(call) and _GROUP.search(file.text):
        return True
    mesh = keyword(call, "device_mesh")
    return mesh is not None and any_is(values(file, mesh), ast.Subscript)
