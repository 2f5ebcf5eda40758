"""What the areas share: small models, what a model holds, and what a call says."""

import contextlib
import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from ..compare import Tree

Tensors = dict[str, torch.Tensor]


class Block(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Blocks between two layers; the last one has an odd number of rows."""

    def __init__(self, blocks: int = 2, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 3)
        self.register_buffer("scale", torch.full((3,), 0.5))
        self.register_buffer("cache", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x))) * self.scale


class Tied(nn.Module):
    """The embedding's weight is the output layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.block = Block()
        self.out = nn.Linear(6, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.block(self.embed(tokens)))


class Layers(nn.Module):
    """Layers by name, and what is done with them."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.call = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, given: Any) -> Any:
        return self.call(self, given)


def layers(
    forward: Callable[..., Any], kind: type[nn.Linear] = nn.Linear, **sizes: tuple[int, int]
) -> Any:
    """A model of linear layers, given by their sizes; the same on every rank."""
    torch.manual_seed(1)
    return Layers(forward, **{name: kind(*size) for name, size in sizes.items()})


def net(**options: Any) -> Net:
    """The same model on every rank."""
    torch.manual_seed(1)
    return Net(**options)


def in_blocks(api: Any, model: nn.Module | None = None, **options: Any) -> Any:
    """A model of which each block is a unit, with ``use_orig_params`` unless told otherwise."""
    policy = api.wrap.ModuleWrapPolicy({Block})
    options = {"auto_wrap_policy": policy, "use_orig_params": True, **options}
    return api.FSDP(net() if model is None else model, **options)


def blocks_by_hand(api: Any, model: Any = None, **options: Any) -> Any:
    """A model that is no unit, of which each block is one."""
    model = model or net()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = api.FSDP(block, **options)
    return model


def state_of(api: Any, model: Any, kind: str, *configurations: Any) -> Any:
    """A model's state dict of a type."""
    with api.FSDP.state_dict_type(model, api.StateDictType[kind], *configurations):
        return model.state_dict()


def initial() -> Tensors:
    """The parameters of a model that was not trained."""
    return {name: p.detach() for name, p in net().named_parameters()}


def cloned(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def batches(count: int, *shape: int) -> list[torch.Tensor]:
    """Inputs that differ by rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [torch.randn(*(shape or (5, 4)), generator=generator) for _ in range(count)]


# Methods of a process group, and what they do; FSDP1 gathers into a list where the backend is gloo.
COLLECTIVES = {
    "allreduce": "all-reduce",
    "broadcast": "broadcast",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "all_gather_single": "all-gather",  # newer names
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter",
}


@contextlib.contextmanager
def counted_collectives(sizes: bool = False) -> Iterator[Counter[str]]:
    """Counts what is called meanwhile, on groups of more than one rank; with ``sizes`` also the bytes of whole results."""
    counts: Counter[str] = Counter()

    def counted(method: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if group.size() > 1:  # torch 2.8 makes collectives of one rank, too
                counts[what] += 1
                if sizes:
                    counts[f"{what}, bytes"] += max(map(bytes_in, args))
            return method(group, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name, what in COLLECTIVES.items():
            if method := vars(dist.ProcessGroup).get(name):
                stack.enter_context(
                    mock.patch.object(dist.ProcessGroup, name, counted(method, what))
                )
        yield counts


def bytes_in(value: Any) -> int:
    """The bytes of all tensors in an argument of a collective: the shard of one rank, or what all ranks have together."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(map(bytes_in, value))
    return 0


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 2,
    inputs: list[Any] | None = None,
) -> list[float]:
    """The losses of a few steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in inputs or batches(steps):
        optimizer.zero_grad()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(set(losses)) == len(losses), "nothing was learned"
    return losses


def by_rank_0(make: Callable[..., str]) -> Callable[..., str]:
    """A text that rank 0 alone makes, once, and gives the others; or the error that says what is wrong with it."""

    def made(*given: Any) -> tuple[str, AssertionError | None]:
        try:
            return make(*given), None
        except AssertionError as error:
            return "", error

    @functools.cache
    def shared(*given: Any) -> str:
        results = [made(*given) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(results)
        text, error = results[0] or ("", None)
        if error:
            raise error
        return text

    return shared


def train_alone(model: nn.Module, steps: int = 2, **options: Any) -> Tensors:
    """The parameters after the same steps without FSDP, on the batches of all ranks."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in batches(steps):
        optimizer.zero_grad()
        model(x).float().pow(2).mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")


def full(api: Any, model: nn.Module) -> Tensors:
    """Every parameter, whole."""
    with api.FSDP.summon_full_params(model, writeback=False):
        return {clean(name): p.detach().clone() for name, p in model.named_parameters()}


def gradients(api: Any, model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Every gradient, whole; of models with ``use_orig_params``."""
    with api.FSDP.summon_full_params(model, writeback=False, with_grads=True):
        return {
            clean(name): None if p.grad is None else p.grad.detach().clone()
            for name, p in model.named_parameters()
        }


def close(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=1e-5) for n in a)


def tree(api: Any, model: nn.Module) -> Tree:
    """Each module: its name, its class, and whether it is a unit."""
    return Tree((n, type(m).__name__, isinstance(m, api.FSDP)) for n, m in model.named_modules())


def units(api: Any, model: nn.Module) -> list[str]:
    """The names of the units, without the wrappers in them."""
    return [clean(f"{name}.").rstrip(".") for name, _, unit in tree(api, model) if unit]


def error(call: Callable[[], Any]) -> str:
    """The class and the text of the error that a call ends with."""
    try:
        call()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    raise AssertionError("no error")


def said(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call, with their classes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return list(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught))


@contextlib.contextmanager
def entered(context: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with context:
        yield


def enter(context: contextlib.AbstractContextManager[Any]) -> None:
    """Enters a context and leaves it."""
    with context:
        pass
