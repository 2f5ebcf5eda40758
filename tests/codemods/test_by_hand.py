"""What no bridge reaches, found across functions, classes and files, and nothing else."""

from pathlib import Path

import pytest

from fsdp_migrate.codemods.by_hand import private_attributes
from fsdp_migrate.findings import Action
from fsdp_migrate.runtime.refusals import PRIVATE_PARTS

from .programs import analysed

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
SHARDED = f"{HEAD}model = FSDP(build(), **options)\n"


def codes(folder: Path, code: str, part: str) -> set[str]:
    return analysed(folder, code).codes(part)


def test_every_private_part_that_the_bridge_refuses_is_found_before_it_runs() -> None:
    assert set(PRIVATE_PARTS) == set(private_attributes.ATTRIBUTES)


MOVES = """def offload(model: FSDP, device):
    for handle in model._all_handles:
        if not handle._offload_params:
            handle.flat_param_to(torch.device(device), non_blocking=True)
            handle.flat_param._local_shard = handle.flat_param.data


def gather(model: FSDP):
    return model._handle.flat_param
"""


def test_a_function_that_moves_flat_parameters_has_one_finding(tmp_path: Path) -> None:
    found = analysed(tmp_path, f"{SHARDED}{MOVES}").findings
    own = [(each.message, each.construct) for each in found if each.code == "FSDP366"]
    assert len(own) == 2, "another function has its own"
    assert [construct for _, construct in own] == [".flat_param_to", "._handle"]
    assert 'by `model.to("cpu")`' in own[0][0]


@pytest.mark.parametrize(
    ("taken", "found"),
    [
        ("for p in model.parameters():", {"FSDP507"}),
        ("for name, p in model.named_parameters():", {"FSDP507"}),
        ("for i, p in enumerate(model.parameters()):", {"FSDP507"}),
        ("for p, q in zip(model.parameters(), other):", {"FSDP507"}),
        ("for i, (name, p) in enumerate(model.named_parameters()):", {"FSDP507"}),
        ("for p in list(filter(lambda p: p.requires_grad, model.parameters())):", {"FSDP507"}),
        ("for name, p in dict(model.named_parameters()).items():", {"FSDP507"}),
        ("for p in {n: q for n, q in model.named_parameters()}.values():", {"FSDP507"}),
        ("for p in [q for q in model.parameters() if q.requires_grad]:", {"FSDP507"}),
        ("for p in sorted(model.parameters(), key=id):", {"FSDP507"}),
        ("for p in critic.parameters():", set()),
        ("for name, p in critic.named_parameters():", set()),
        ("for q, p in zip(model.parameters(), critic.parameters()):", set()),
        ("for p in model.buffers():", set()),
        ("for p in [loss, metric]:", set()),
    ],
)
def test_parameters_are_known_however_taken(taken: str, found: set[str], tmp_path: Path) -> None:
    program = f"{SHARDED}{taken}\n    total += p.grad.norm()\n"
    assert codes(tmp_path, program, "total") == found


def test_the_model_of_the_other_branch_is_left_alone(tmp_path: Path) -> None:
    program = f"""{HEAD}
if sharded:
    model = FSDP(build())
else:
    model = build()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
"""
    found = analysed(tmp_path, program)
    assert found.codes("1.0") == set()
    assert found.codes("2.0") == {"FSDP302"}


def test_a_loop_runs_the_lines_above_the_constructor_again(tmp_path: Path) -> None:
    program = f"""{HEAD}
model = None
for stage in stages:
    if model is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model = FSDP(build(stage))
"""
    assert codes(tmp_path, program, "1.0") == {"FSDP302"}


def test_lists_that_are_kept_or_filled_are_followed(tmp_path: Path) -> None:
    program = f"""{HEAD}
class Trainer:
    def __init__(self, model, critic):
        self.model = FSDP(model, **options)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.others = list(critic.parameters())

    def step(self):
        grads = []
        for p in self.trained:
            grads.append(p.grad)
        norms = [torch.norm(g) for g in grads]
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        torch.nn.utils.clip_grad_norm_(self.others, 2.0)


Trainer(nn.Linear(8, 8), nn.Linear(8, 1))
"""
    found = analysed(tmp_path, program)
    assert found.codes("norms =") == {"FSDP507"}
    assert found.codes("1.0") == {"FSDP302"}
    assert found.codes("2.0") == set()


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_with_the_bridge_alone_only_imports_change(form: str, tmp_path: Path) -> None:
    program = f"{SHARDED}model._handle.reshard(True)\n"
    found = analysed(tmp_path, program, form)
    kept = form == "bridge"
    assert found.is_kept("reshard") == kept
    actions = {f.action for f in found.findings if f.code == "FSDP366"}
    assert (Action.MANUAL in actions) == kept


@pytest.mark.parametrize(
    "line",
    ["self._handle.kill()", "server._handle.kill()", "loop.params", "optimizer._lazy_init()"],
)
def test_other_objects_have_attributes_of_such_names(line: str, tmp_path: Path) -> None:
    program = f"from enum import Enum  # no FSDP\n\n\ndef stop(self, server, loop, optimizer):\n    {line}\n"
    assert codes(tmp_path, program, line) == set()


@pytest.mark.parametrize(
    ("hook", "codes_of"),
    [
        ("model.register_comm_hook(state, hook)", {"FSDP361"}),
        ("ddp.register_comm_hook(state, hook)", set()),
        ("[p.register_hook(print) for p in model.parameters()]", {"FSDP506"}),
        ("model(batch).register_hook(print)", set()),
        ("model.register_forward_hook(print)", set()),
    ],
)
def test_hooks(hook: str, codes_of: set[str], tmp_path: Path) -> None:
    assert (
        codes(tmp_path, f"{SHARDED}ddp = nn.parallel.DistributedDataParallel(net)\n{hook}\n", hook)
        == codes_of
    )


def test_a_handle_of_an_argument_is_found_in_a_file_that_speaks_of_fsdp1(tmp_path: Path) -> None:
    program = (
        f"{HEAD}\ndef free(unit):\n    if isinstance(unit, FSDP):\n        unit._handles.clear()\n"
    )
    assert codes(tmp_path, program, "_handles") == {"FSDP366"}
    others = program.replace(HEAD, "# FSDP\n").replace("isinstance(unit, FSDP)", "unit")
    assert codes(tmp_path, others, "_handles") == set()


def test_a_function_returns_what_this_call_gave_it(tmp_path: Path) -> None:
    program = f"""{HEAD}
def prepared(model):
    model.eval()
    return model


net = prepared(build())
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
model = prepared(FSDP(build()))
torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
"""
    found = analysed(tmp_path, program)
    assert found.codes("1.0") == set()
    assert found.codes("2.0") == {"FSDP302"}


def test_gradients_that_are_reduced_by_hand_are_reported(tmp_path: Path) -> None:
    program = f"{SHARDED}for p in model.parameters():\n    dist.all_reduce(p.grad, group=tensor)\n"
    assert codes(tmp_path, program, "all_reduce") == {"FSDP507", "FSDP525"}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("unique = {p.data_ptr(): p for p in model.parameters()}", {"FSDP507"}),
        ("empty = model.scale.shape.numel() == 0", {"FSDP507"}),
        ("vector = nn.utils.parameters_to_vector(model.parameters())", {"FSDP507"}),
        (
            "ranks = [p.full_tensor() if isinstance(p, DTensor) else p.sum() for p in model.parameters()]",
            set(),
        ),
        ("dead = sum((p.grad == 0).sum() for p in model.parameters())", {"FSDP507"}),
        ("norm = model.head.weight.grad.norm()", {"FSDP507"}),
        ("own = model.head.statistics.norm()", set()),
        ("vectors = [p for p in model.parameters() if len(p.shape) == 1]", {"FSDP507"}),
        ("same = [p for p in model.parameters() if p.shape == x.shape]", set()),
        ("lost = sum(p.grad is None for p in model.parameters())", {"FSDP529"}),
        ("shapes = {n: p.shape for n, p in model.named_parameters()}", set()),
        ("moments = [torch.zeros(p.shape) for p in model.parameters()]", {"FSDP507"}),
        ("moments = [torch.zeros_like(p) for p in model.parameters()]", set()),
        ("frozen = [p for p in model.parameters() if not p.requires_grad]", set()),
    ],
)
def test_uses_of_parameters(use: str, expected: set[str], tmp_path: Path) -> None:
    assert codes(tmp_path, f"{SHARDED}{use}\n", use) == expected


_GPT = """\
import torch.nn as nn


class GPT(nn.Module):
    def configure_optimizers(self):
        params = {name: p for name, p in self.named_parameters()}
        return [p for name, p in params.items() if p.dim() >= 2]
"""


@pytest.mark.parametrize(
    ("use", "reported"),
    [
        ("groups = model.configure_optimizers()\nmodel = FSDP(model)", False),
        ("model = FSDP(model)\ngroups = model.configure_optimizers()", True),
        ("model = FSDP(model)\nraw = model.module\ngroups = raw.configure_optimizers()", True),
        ("other = GPT()\nmodel = FSDP(model)\ngroups = other.configure_optimizers()", False),
    ],
    ids=["before wrapping", "after it", "of the module inside", "of another model"],
)
def test_a_models_method_that_groups_by_dimensions(
    use: str, reported: bool, tmp_path: Path
) -> None:
    program = f"{HEAD}from gpt import GPT\n\nmodel = GPT()\n{use}\n"
    found = analysed(tmp_path, {"train.py": program, "gpt.py": _GPT})
    assert found.codes("p.dim()", "gpt.py") == ({"FSDP507"} if reported else set())
    together = analysed(tmp_path, {"train.py": HEAD + _GPT + f"\n\nmodel = GPT()\n{use}\n"})
    assert together.codes("p.dim()") == ({"FSDP507"} if reported else set())


def test_a_model_is_known_where_names_are_bound_together(tmp_path: Path) -> None:
    program = f"""{HEAD}
def build():
    model = FSDP(Net())
    return model, torch.optim.SGD(model.parameters())


class Trainer:
    def __init__(self, critic):
        self.model, self.optimizer = build()
        self.critic, self.other = critic, FSDP(Net())

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(self.other.parameters(), 2.0)
        torch.nn.utils.clip_grad_norm_(self.critic.parameters(), 3.0)


Trainer(nn.Linear(8, 1))
"""
    found = analysed(tmp_path, program)
    expected = [{"FSDP302"}, {"FSDP302"}, set[str]()]
    assert [found.codes(norm) for norm in ("1.0", "2.0", "3.0")] == expected


@pytest.mark.parametrize("options", ["", "use_orig_params=True"])
def test_modules_that_own_parameters(options: str, tmp_path: Path) -> None:
    """`use_orig_params=False` gave the parameters of all modules to their unit."""
    program = (
        f"{HEAD}model = FSDP(build(), {options})\nfor m in model.modules():\n"
        f"    if isinstance(m, torch.nn.LayerNorm):\n        rest.extend(m.parameters(recurse=False))\n"
    )
    assert codes(tmp_path, program, "rest") == (set() if options else {"FSDP507"})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ("dict(use_orig_params=False)", True),
        ("dict(ignored_modules=[model.head])", True),
        ("dict(use_orig_params=True)", False),
        ("settings()", True),
    ],
)
def test_names_of_flat_parameters_with_an_unpacked_dictionary(
    options: str, reported: bool, tmp_path: Path
) -> None:
    program = (
        f"{HEAD}options = {options}\nmodel = FSDP(model, **options)\n"
        "rest = [p for name, p in model.named_parameters() if name.endswith('bias')]\n"
    )
    assert codes(tmp_path, program, "named_parameters") == ({"FSDP507"} if reported else set())


@pytest.mark.parametrize(
    ("others", "clip", "action"),
    [
        ("", "model.clip_grad_norm_(1.0)", Action.MANUAL),
        ("", "FSDP.clip_grad_norm_(model, 1.0)", Action.MANUAL),
        ("", "model.clip_grad_norm_(1.0, float('inf'))", None),
        ("", "other.clip_grad_norm_(1.0)", None),
        ("dist.all_reduce(model.head.grad)", "model.clip_grad_norm_(1.0)", Action.RUNTIME),
        ("model.head.requires_grad_(False)", "model.clip_grad_norm_(1.0)", Action.RUNTIME),
    ],
)
@pytest.mark.parametrize("given", ["ignored_states=frozen", "**{'ignored_modules': [model.head]}"])
def test_clipping_with_ignored_parameters(
    others: str, clip: str, action: Action | None, given: str, tmp_path: Path
) -> None:
    program = f"{HEAD}model = FSDP(model, {given})\n{others}\nnorm = {clip}\n"
    found = analysed(tmp_path, program).findings
    actions = [each.action for each in found if each.code == "FSDP302"]
    assert actions == ([] if action is None else [action])


def test_an_optimizer_is_saved_where_another_model_is_loaded(tmp_path: Path) -> None:
    program = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model, resume, rank):
    if resume:
        model.load_state_dict(torch.load("model.pth"))
    model = FSDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save(optimizer.state_dict(), f"optimizer.{rank}.pth")
"""
    assert analysed(tmp_path, program).codes("optimizer.state_dict") == {"FSDP336"}
    resumed = program.replace("main(", "main(optimizer, ").replace("model.load", "optimizer.load")
    assert analysed(tmp_path, resumed).codes("optimizer.state_dict") == {"FSDP336"}
    back = "    optimizer.load_state_dict(optimizer.state_dict())\n"
    again = (
        program.partition("    torch.save")[0].replace('torch.load("model.pth")', "resume") + back
    )
    assert analysed(tmp_path, again).codes("optimizer.state_dict") == set()


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("import torch.distributed.fsdp._traversal_utils as traversal\n", {"FSDP366"}),
        ("import fairscale\n", set()),
    ],
)
def test_what_is_read_from_handles_that_a_function_gave(
    head: str, found: set[str], tmp_path: Path
) -> None:
    loop = "for handle, other in zip(handles_of(a), handles_of(b)):\n    update(handle.flat_param, other)\n"
    program = f"{head}{loop}# for models that FSDP shards: fsdp_handles(model)\n"
    found_there = analysed(tmp_path, {"train.py": program, "sharding.py": SHARDED})
    assert found_there.codes("update") == found


def test_a_part_of_the_wrapper_in_a_conditional_expression(tmp_path: Path) -> None:
    program = f"{SHARDED}flat = model._handle.flat_param if sharded else other.flat_param\n"
    found = analysed(tmp_path, program)
    assert found.codes("flat =") == {"FSDP366"}


SAVING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def save(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    torch.save(state, "model.pt")
"""


@pytest.mark.parametrize(
    ("compiled", "is_reported"),
    [("model = torch.compile(model)", True), ("model.compile()", False), ("pass", False)],
)
def test_names_of_a_model_that_another_file_compiles(
    tmp_path: Path, compiled: str, *, is_reported: bool
) -> None:
    train = f"""\
import torch
from saving import save
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net())
{compiled}
save(model)
"""
    program = analysed(tmp_path, {"train.py": train, "saving.py": SAVING}, "torch")
    assert ("FSDP337" in program.codes("with FSDP", "saving.py")) is is_reported
