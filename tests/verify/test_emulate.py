"""CUDA on the CPU: programs that ask for nothing else, and what cannot be emulated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.verify import failures, launch, main
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program, copy
from fsdp_migrate.verify.options import Recording
from fsdp_migrate.verify.processes import Outcome

from ..forkserver import ForkServer

torch = pytest.importorskip("torch")

CASE = Path(__file__).parent / "cuda_alone" / "train.py"

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_a_program_for_cuda_alone_is_verified_without(tmp_path: Path) -> None:
    verdict = main.verify(CASE, launcher="torchrun", device="cpu", tolerance=0)
    assert verdict.emulated
    assert verdict.backend == "gloo"
    assert verdict.equal, verdict.line()
    assert verdict.bitwise
    assert verdict.max_abs_param_diff == 0
    assert len(verdict.original.ranks[0].losses) == 5
    assert all(
        run.ranks[0].output.startswith("R 0 ") for run in (verdict.original, verdict.migrated)
    )


# A second model whose optimizer is sharded, a function in TorchScript, and a look at the device.
SECOND = """\
    optimizer = ZeroRedundancyOptimizer(second.parameters(), torch.optim.SGD, lr=1e-2)
    for _ in range(2):
        norm(second(torch.ones(2, 4, device=device))).backward()
        optimizer.step()
    dist.destroy_process_group()
"""
HELPERS = """\
from torch.distributed.optim import ZeroRedundancyOptimizer

@torch.jit.script
def norm(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()

"""


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_a_sharded_optimizer_and_a_script_run(tmp_path: Path) -> None:
    text = CASE.read_text()
    text = text.replace("\nclass Block", f"{HELPERS}\nclass Block")
    text = text.replace("    dist.destroy_process_group()\n", SECOND)
    made = """\
    device = torch.device("cuda", rank)
    second = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).to(device), device_ids=[device])
    if device.type != "cuda" or next(second.parameters()).device != device:
        raise RuntimeError(f"needs CUDA, not {device}")
    model = Net().cuda()
"""
    text = text.replace("    model = Net().cuda()\n", made)
    (tmp_path / "train.py").write_text(text)
    verdict = main.verify(tmp_path / "train.py", device="cpu", tolerance=0)
    assert verdict.emulated
    assert verdict.equal, verdict.line()
    assert len(verdict.original.ranks[0].losses) == 7


Emulated = Callable[..., tuple[int, str]]


@pytest.fixture
def emulated(tmp_path: Path, fork_server: ForkServer) -> Emulated:
    """Run a few lines with the emulation; the exit status, and what they print."""

    def run(code: str, **how: int) -> tuple[int, str]:
        script = tmp_path / "train.py"
        script.write_text(code)
        (tmp_path / "records").mkdir()
        program = copy("original", script, tmp_path / "copy")
        recording = Recording(**{"emulate": 2, **how})
        values = launch.environment(program, "cpu", tmp_path / "records", recording)
        command = [sys.executable, str(script)]
        done = fork_server.run(command, tmp_path, values, tmp_path / "output", 60)
        return done.status, (tmp_path / "output").read_text()

    return run


PROBES = """
import io, pickle, torch, torch.nn as nn
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
torch.cuda.set_device(1); assert torch.cuda.current_device() == 1
x = torch.ones(2).to("cuda", non_blocking=True); assert x.is_cuda
y = x.cpu(); y.add_(1); assert x[0] == 1, "a copy, as from a device"
torch.randn(2, device="cuda:1").cuda().to(0).to(device="cuda", dtype=torch.half)
nn.Linear(2, 2, device="cuda").cuda().to(0); nn.Linear(2, 2, device="meta").to_empty(device="cuda")
with torch.device("meta"): assert nn.Linear(2, 2).weight.is_meta
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a.record(); b.record(); torch.cuda.synchronize(); assert a.elapsed_time(b) >= 0
with torch.cuda.stream(torch.cuda.Stream()): x.record_stream(torch.cuda.current_stream())
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_stats()["num_ooms"] == 0
assert torch.cuda.get_device_properties(0).total_memory and torch.cuda.get_device_capability() >= (8, 0)
assert torch.cuda.is_bf16_supported() and torch.version.cuda >= "11.0"
torch.manual_seed(1); z = torch.rand(2); torch.manual_seed(1); torch.cuda.manual_seed_all(7); assert torch.equal(z, torch.rand(2))
m = torch.ones(2, 2, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16): assert (m @ m).dtype == torch.bfloat16 and torch.is_autocast_enabled()
with torch.cuda.amp.autocast(): assert (m @ m).dtype == torch.float16
assert torch.amp.GradScaler().is_enabled() and torch.cuda.amp.GradScaler().is_enabled()
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
f = io.BytesIO(); torch.save(x, f); f.seek(0); torch.load(f, map_location={"cuda:0": "cuda:1"})
f.seek(0); torch.load(f, map_location=lambda storage, place: storage.cuda(1))
torch.rand(2, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda")
assert isinstance(x.device, torch.device) and pickle.loads(pickle.dumps(torch.device("cuda", 0))) == x.device
assert x.device.type == "cuda" and str(x.device) == "cuda:1" and x.device == torch.device("cuda", 1) != torch.device("cpu")
assert torch.device(0).index == 0 and torch.device("cuda").index is None and torch.device(x.device).type == "cuda"
assert torch.zeros(2, device=x.device).to(x.device).device.type == "cuda" and torch.empty(1, device="meta").device.type == "meta"
assert torch._C._nn._parse_to(x.device)[0] == x.device and not torch._C._nn._parse_to(torch.half)[0]; torch.cuda.set_device(torch.device("cuda", 0)); assert torch.cuda.current_device() == 0
@torch.jit.script
def scripted(n: int, on: torch.device) -> torch.Tensor: return torch.zeros(n, device=on)
assert len(scripted(3, x.device)) == 3
assert torch.cuda.FloatTensor(2).type("torch.cuda.HalfTensor").dtype == torch.half
def typed(d: torch.device | None = None) -> None: ...
torch.cuda.nvtx.range_push("a"); torch.cuda.empty_cache(); torch.cuda.cudart().cudaProfilerStart()
compiled = torch.compile(nn.Linear(2, 2).cuda()); compiled(m); assert isinstance(compiled._orig_mod, nn.Linear)
class Graph(torch.cuda.CUDAGraph): ...
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
ranks = torch.empty(1, device="cuda"); dist.all_gather_into_tensor(ranks, torch.tensor(3.0, device="cuda")); assert ranks[0] == 3
part = torch.empty(6, dtype=torch.long); dist.reduce_scatter_tensor(part, torch.ones(2, 3, dtype=torch.long)); assert part[5] == 1
print("done")
"""


def test_what_programs_say_of_cuda(emulated: Emulated) -> None:
    assert emulated(PROBES) == (0, "done\n")


# A model with sharded and plain parameters, and what is done with them.
MIXED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(DEVICE)
plain, sharded = [*model[0].parameters()], model[1].parameters
fully_shard(model, ignored_params={*plain})
model(torch.ones(2, 2, device=DEVICE)).sum().backward()
STEP
print("done")
"""
BOTH, APART = "model.parameters()", "[{'params': plain}, {'params': sharded()}]"


@pytest.mark.parametrize(
    ("step", "raises"),
    [
        (f"torch.optim.AdamW({BOTH}).step()", True),
        (f"torch.optim.SGD({BOTH}, lr=0.1, momentum=0.9).step()", True),
        (f"torch.optim.Adagrad({BOTH}).step()", True),
        (f"torch.optim.AdamW({BOTH}, foreach=False).step()", False),
        (f"torch.optim.AdamW({APART}).step()", False),
    ],
)
def test_optimizers_choose_as_on_cuda(step: str, raises: bool, emulated: Emulated) -> None:
    code = MIXED.replace("STEP", step)
    status, output = emulated(code.replace("DEVICE", "'cuda'"))
    assert (status != 0) == raises, output
    assert ("got mixed torch.Tensor and DTensor" in output) == raises


def test_the_runtime_takes_mixed_parameters_one_by_one(emulated: Emulated) -> None:
    code = MIXED.replace("STEP", f"torch.optim.AdamW({BOTH}).step()").replace("DEVICE", "'cuda'")
    code = code.replace(
        "import fully_shard", "import fully_shard\nfrom fsdp_migrate.runtime import like_fsdp1"
    )
    code = code.replace("\nfully_shard(", "\nwith like_fsdp1(model): fully_shard(")
    assert "with like_fsdp1" in code
    assert emulated(code) == (0, "done\n")


def test_optimizers_choose_as_on_a_cpu_without_emulation(emulated: Emulated) -> None:
    step = f"torch.optim.AdamW({BOTH}).step()"
    code = MIXED.replace("STEP", step).replace("DEVICE", "'cpu'")
    assert emulated(code, emulate=0) == (0, "done\n")


PROGRAM = """\
import torch
devices = torch.cuda.device_count()
rank = 1
local = rank % devices
torch.cuda.set_device(local)
assert ready()
x = 1 / 0  # on cuda, too
"""


@pytest.mark.parametrize(
    ("emulated", "device", "reason", "line", "hint"),
    [
        (True, "cpu", "ModuleNotFoundError: No module named 'flash_attn'", 1, "CUDA was emulated"),
        (
            False,
            "cpu",
            "AssertionError: Torch not compiled with CUDA enabled",
            7,
            "--emulate runs it",
        ),
        (False, "cpu", "RuntimeError: Cannot access accelerator device", 1, "--emulate runs it"),
        (False, "cpu", "AttributeError: no attribute '_cuda_setDevice'", 1, "--emulate runs it"),
        # the code that raised is about CUDA, or takes a number from it
        (False, "cpu", "AssertionError: Invalid id", 5, "--emulate runs it"),
        (False, "cpu", "ZeroDivisionError: integer modulo by zero", 4, "--emulate runs it"),
        # the program says it, and leaves
        (False, "cpu", "exit status 1", 0, "--emulate runs it"),
        (False, "cpu", "ValueError: no", 6, ""),
        (False, "cpu", "ZeroDivisionError: division by zero", 7, ""),
        (False, "cuda", "RuntimeError: CUDA error: out of memory", 5, ""),
    ],
)
def test_a_failure_says_what_cuda_has_to_do_with_it(
    emulated: bool, device: str, reason: str, line: int, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "cuda_train.py").write_text(PROGRAM)
    program = Program("original", tmp_path, tmp_path / "cuda_train.py", tmp_path)
    scene = failures.Scene(program, Outcome(1, 1.0), tmp_path, 2, [])
    trace = "starting\nThis needs a GPU.\n"
    if line:
        trace = (
            f'Traceback\n  File "{tmp_path}/cuda_train.py", line {line}, in <module>\n{reason}\n'
        )
        reason += f" (cuda_train.py:{line})"
    failure = ProgramFailed("original", reason, "", trace)
    told = failures.with_cuda(failure, scene, device, emulated=emulated).reason
    assert told.startswith(reason)
    assert (hint in told) if hint else told == reason


def test_which_programs_need_cuda(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for text, needs in (
        ("import torch\n", False),
        ("model.cuda()\n", True),
        ("init_process_group('nccl')\n", True),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'\n", False),
    ):
        script.write_text(text)
        assert launch.needs_cuda(tmp_path) == needs
