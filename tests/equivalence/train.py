"""Trains a model under FSDP1 and a copy of it under the bridge, and measures how far apart they end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
import torch.distributed.fsdp.wrap as wrap
from torch import nn
from torch.distributed.fsdp import FSDPModule, _init_utils
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime.torch_private import units_of

from .models import Block, Transformer

# What a case takes its options from: torch's names for FSDP1, the runtime's for the bridge.
TORCH = SimpleNamespace(**{**vars(fsdp), **vars(wrap)})
BRIDGE = SimpleNamespace(**{**vars(runtime), **vars(runtime.wrap)})


@dataclass(frozen=True)
class Case:
    """One comparison. ``options(api)`` gives the constructor's arguments, the same for both.

    Of the numbers of ``ranks`` the first is for ``make test``; others show it again, under ``make thorough``.
    """

    name: str
    options: Callable[[Any], dict[str, Any]] = lambda api: {}
    model: Callable[[], nn.Module] = Transformer
    ranks: tuple[int, ...] = (2, 4)
    steps: int = 2  # the second starts from what the first has updated, and prefetches in its order
    micro_batches: int = 1
    clip: float | None = None
    norm_type: float = 2.0
    prepare: Callable[[nn.Module], None] = lambda model: None
    fsdp1: dict[str, Any] = field(default_factory=lambda: {"use_orig_params": True})
    rank_seeds: bool = False
    meta: str = ""  # "": materialized; "all": every rank on meta; "others": all but rank 0
    ours: Callable[..., nn.Module] = runtime.FullyShardedDataParallel
    theirs: Callable[..., nn.Module] = FSDP
    foreign_options: bool = False  # hand torch's own option objects to the bridge
    no_sync: Callable[[nn.Module], Any] = runtime.FullyShardedDataParallel.no_sync
    clip_grad_norm_: Callable[..., torch.Tensor] = runtime.FullyShardedDataParallel.clip_grad_norm_
    bitwise: bool = True  # at two ranks in float32
    tolerance: float = 1e-6  # relative to the largest value, otherwise


# The whole parameters and buffers of a model, by name.
Full = Callable[[nn.Module], tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]


@dataclass
class Run:
    losses: list[torch.Tensor]
    norms: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    collectives: dict[str, int]
    seen_dtypes: list[str]
    norm_type: str


# Methods of a process group, and what they do; FSDP1 gathers into a list where the backend is gloo.
COLLECTIVES = {
    "allreduce": "all-reduce",
    "broadcast": "broadcast",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "all_gather_single": "all-gather",  # the names since torch 2.13
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter",
}


@contextlib.contextmanager
def counted_collectives() -> Iterator[Counter[str]]:
    """Counts what is called meanwhile, on groups of more than one rank."""
    counts: Counter[str] = Counter()

    def counted(method: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if group.size() > 1:
                counts[what] += 1
            return method(group, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name, what in COLLECTIVES.items():
            if method := vars(dist.ProcessGroup).get(name):
                patch.setattr(dist.ProcessGroup, name, counted(method, what))
        yield counts


def build(case: Case) -> nn.Module:
    torch.manual_seed(dist.get_rank() if case.rank_seeds else 0)
    on_meta = case.meta == "all" or (case.meta == "others" and dist.get_rank() != 0)
    with torch.device("meta") if on_meta else contextlib.nullcontext():
        model = case.model()
    case.prepare(model)
    torch.manual_seed(7)  # what initializes a meta module starts here in both runs
    return model


def train(
    case: Case,
    model: nn.Module,
    no_sync: Callable[[nn.Module], Any],
    clip: Callable[..., torch.Tensor],
    full: Full,
) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses, norms = [], []
    seen = see_dtypes(model)
    with counted_collectives() as collectives:
        for _ in range(case.steps):
            optimizer.zero_grad()
            for micro_batch in range(case.micro_batches):
                last = micro_batch == case.micro_batches - 1
                with contextlib.nullcontext() if last else no_sync(model):
                    loss = model(*case.model.batch(generator)).float().pow(2).mean()
                    loss.backward()
                losses.append(loss.detach().clone())
            if case.clip is not None:
                norms.append(clip(model, case.clip, case.norm_type))
            optimizer.step()
    parameters, buffers = full(model)
    kind = type(norms[0]).__name__ if norms else ""
    return Run(losses, norms, parameters, buffers, dict(collectives), seen, kind)


def see_dtypes(model: nn.Module) -> list[str]:
    """What the blocks' masks will be cast to: grows with every forward. The models themselves must not store it."""
    seen: list[str] = []

    def see(block: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen.append(str(args[-1].dtype))

    for module in model.modules():
        if isinstance(module, Block):
            module.register_forward_hook(see)
    return seen


def full_fsdp1(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    with FSDP.summon_full_params(model, writeback=False):
        parameters = {clean(n): p.detach().clone() for n, p in model.named_parameters()}
    return parameters, {clean(n): b.clone() for n, b in model.named_buffers()}


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def full_fsdp2(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()
    parameters = {
        clean(n): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for n, p in model.named_parameters()
    }
    return parameters, {clean(n): b.clone() for n, b in model.named_buffers()}


@contextlib.contextmanager
def fsdp1_on_cpu() -> Iterator[None]:
    """FSDP1 insists on an accelerator, more so to broadcast and to offload; on the CPU none of it needs one."""
    check = _init_utils._check_module_states_for_sync_module_states
    pin_memory, synchronize = (
        torch.Tensor.pin_memory,
        getattr(torch.cpu.Stream, "synchronize", None),
    )
    _init_utils._check_module_states_for_sync_module_states = lambda states: None
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    torch.cpu.Stream.synchronize = lambda self: None
    construct, current_device = FSDP.__init__, torch.cuda.current_device

    def construct_on_cpu(self: FSDP, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("device_id") is None:
            kwargs["device_id"] = torch.device("cpu")
        construct(self, *args, **kwargs)

    FSDP.__init__ = construct_on_cpu
    torch.cuda.current_device = lambda: torch.device("cpu")
    try:
        yield
    finally:
        FSDP.__init__, torch.cuda.current_device = construct, current_device
        _init_utils._check_module_states_for_sync_module_states = check
        torch.Tensor.pin_memory = pin_memory
        if synchronize is None:
            del torch.cpu.Stream.synchronize
        else:
            torch.cpu.Stream.synchronize = synchronize


def run_fsdp1(case: Case) -> Run:
    with fsdp1_on_cpu():
        options = {**case.options(TORCH), **case.fsdp1}
        model = build(case)
        _name_to_module(model, options)
        model = case.theirs(model, **options)
        run = train(case, model, lambda m: m.no_sync(), FSDP.clip_grad_norm_, full_fsdp1)
    del model  # before the process group goes, or the process may abort
    return run


def run_ours(case: Case) -> Run:
    options = {**case.options(TORCH if case.foreign_options else BRIDGE), **case.fsdp1}
    model = build(case)
    _name_to_module(model, options)
    model = case.ours(model, **options)
    run = train(case, model, case.no_sync, case.clip_grad_norm_, full_fsdp2)
    del model
    return run


def run_source(case: Case, source: str, full: Full) -> Run:
    """Runs a program: its function ``run(train)`` hands over a model, with its own ways to accumulate and to clip."""
    torch.manual_seed(dist.get_rank() if case.rank_seeds else 0)
    runs: list[Run] = []

    def hand_over(model: nn.Module, no_sync: Any, clip: Any) -> None:
        runs.append(
            train(case, model, lambda model: no_sync(), lambda model, *limit: clip(*limit), full)
        )

    names: dict[str, Any] = {}
    exec(compile(source, case.name, "exec"), names)
    names["run"](hand_over)
    names.clear()
    return runs[0]


def _name_to_module(model: nn.Module, options: dict[str, Any]) -> None:
    """Lets a case name modules and parameters of a model that does not exist yet."""
    for key in ("ignored_modules", "ignored_states"):
        if key in options:
            parameters = dict(model.named_parameters())
            options[key] = [
                parameters[n] if n in parameters else model.get_submodule(n) for n in options[key]
            ]


def averaging(model: FSDPModule) -> Any:
    """``model`` of ``fully_shard``, whose gradients are means: torch 2.8 with gloo sums them (pytorch#162338).

    The bridge sets the same.
    """
    for unit in units_of(model):
        unit.set_force_sum_reduction_for_comms(True)
    return model


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    a, b = a.double(), b.double()
    return ((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item() if a.numel() else 0.0


def compare(theirs: Run, ours: Run) -> dict[str, Any]:
    """What :func:`differences` judges, small enough to write down."""

    def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
        return all(
            a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a.keys() & b.keys()
        )

    def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
        return max((relative(a[n], b[n]) for n in a.keys() & b.keys()), default=0.0)

    return {
        "bitwise": {
            "losses": all(map(torch.equal, theirs.losses, ours.losses)),
            "parameters": equal(theirs.parameters, ours.parameters),
            "buffers": equal(theirs.buffers, ours.buffers),
            "norms": all(map(torch.equal, theirs.norms, ours.norms)),
        },
        "apart": {
            "losses": max(map(relative, theirs.losses, ours.losses)),
            "parameters": apart(theirs.parameters, ours.parameters),
            "buffers": apart(theirs.buffers, ours.buffers),
            "norms": max(map(relative, theirs.norms, ours.norms), default=0.0),
        },
        "names": [sorted(run.parameters) + sorted(run.buffers) for run in (theirs, ours)],
        "dtypes": [run.seen_dtypes for run in (theirs, ours)],
        "buffer_dtypes": [
            sorted((n, str(b.dtype)) for n, b in run.buffers.items()) for run in (theirs, ours)
        ],
        "collectives": [run.collectives for run in (theirs, ours)],
        "norm_types": [run.norm_type for run in (theirs, ours)],
        "trained": len({loss.item() for loss in ours.losses}) == len(ours.losses),
    }


def differences(case: Case, result: dict[str, Any], bitwise: bool) -> list[str]:
    """What keeps ``result`` from being the same training; empty if nothing does."""
    if "error" in result:
        return [result["error"]]
    found = [
        f"{what}: {result[what]}"
        for what in ("names", "dtypes", "buffer_dtypes", "collectives", "norm_types")
        if result[what][0] != result[what][1]
    ]
    if not result["trained"]:
        found.append("trained: the losses do not change")
    for what, apart in result["apart"].items():
        # Norms are sums over differently shaped shards, so they round differently.
        if bitwise and what != "norms" and not result["bitwise"][what]:
            found.append(f"{what}: not bitwise equal, {apart:.1e} apart")
        elif not apart <= case.tolerance:
            found.append(f"{what}: {apart:.1e} apart, more than {case.tolerance:.0e}")
    return found
