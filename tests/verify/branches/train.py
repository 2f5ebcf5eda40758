"""FSDP1 models in which several units read one tensor, each trained for two steps in float32 and in bfloat16."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Unit(nn.Module):
    """Reads its input twice, as attention does with keys and values."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(width, WIDTH), nn.Linear(width, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.key(x).tanh() * self.value(x)


class Reader(Unit):
    """Reads what others read, too, beside an input of its own."""

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return x + self.key(memory) * self.value(memory)


class Pair(nn.Module):
    """A unit with two units in it, behind its one input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.scale = Unit(), Unit(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x) + self.scale(x)


class Net(nn.Module):
    """What all of them have: a layer before the units, whose gradient shows in which order theirs are added up."""

    def __init__(self, widths: tuple[int, ...] = (WIDTH,) * 3) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.units = nn.ModuleList(Unit(width) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.middle(self.enter(x)))


class Experts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, i : i + 1] * unit(x) for i, unit in enumerate(self.units))


class RoutedExperts(Experts):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).topk(2).indices
        result = torch.zeros_like(x)
        for i, unit in enumerate(self.units):
            result = result + unit(x) * (chosen == i).any(-1, keepdim=True)
        return result


class Branches(Net):
    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(3 * WIDTH, WIDTH)

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat([unit(x) for unit in self.units], -1))


class ParallelBlock(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.units[0](x) + self.units[1](x) + self.units[2](x)


class SharedMemory(Net):
    def __init__(self) -> None:
        super().__init__(())
        self.start = nn.Linear(WIDTH, WIDTH)
        self.units = nn.ModuleList(Reader() for _ in range(3))

    def middle(self, memory: torch.Tensor) -> torch.Tensor:
        x = self.start(memory)
        for unit in self.units:
            x = unit(x, memory=memory)
        return x


class Residual(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for unit in self.units:
            x = x + unit(x) + first
        return x


class Dense(Net):
    def __init__(self) -> None:
        super().__init__((WIDTH, 2 * WIDTH, 3 * WIDTH))

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            x = torch.cat([x, unit(x)], -1)
        return x[:, -WIDTH:] + x[:, :WIDTH]


class Skips(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        down = self.units[0](x)
        low = self.units[1](down)
        return self.units[2](down + low) + down + x


class Towers(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        one = self.units[0](x)
        other = self.units[2](self.units[1](x))
        return one * other


class Heads(Net):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(3))

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            unit(x).square() * weight for unit, weight in zip(self.units, self.weights, strict=True)
        ]
        return torch.stack(heads).mean(0)


class Twice(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return self.units[0](x) + self.units[1](x) + self.units[0](x * 0.5) + self.units[2](x)


class Nested(Net):
    def __init__(self) -> None:
        super().__init__(())
        self.units = nn.ModuleList([Pair(), Unit()])

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return self.units[0](x) + self.units[1](x)


class Checkpointed(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return sum(checkpoint(unit, x, use_reentrant=False) for unit in self.units)


MODELS = [
    Experts,
    RoutedExperts,
    Branches,
    ParallelBlock,
    SharedMemory,
    Residual,
    Dense,
    Skips,
    Towers,
    Heads,
    Twice,
    Nested,
    Checkpointed,
]


def train(kind: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = FSDP(
        kind(),
        auto_wrap_policy=ModuleWrapPolicy({Unit, Reader, Pair}),
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        x, target = torch.randn(2, 32, 8, generator=generator)
        loss = nn.functional.mse_loss(model(x).float(), target[:, :4])
        loss.backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    for kind in MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            train(kind, dtype)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
