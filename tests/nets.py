"""Small models with what makes sharding interesting: odd sizes, buffers, nesting, batch norm, ties."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(
            F.scaled_dot_product_attention((q * cos).to(q.dtype), (k * cos).to(k.dtype), v)
        )


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x), cos)
        return x + self.mlp(x) * mask.to(x.dtype)


class Transformer(nn.Module):
    """Two blocks between an embedding and a head; vocabulary and width divide by neither 2 nor 4."""

    def __init__(self, dim: int = 18, vocab: int = 37, length: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(2)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        angles = torch.arange(length * dim, dtype=torch.float32).view(length, dim) * 0.1
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("scale", torch.full((1,), 1.0 + 1 / 3))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = (x * self.scale).to(x.dtype)
        for block in self.blocks:
            # float32 made inside the forward: the root's input cast does not reach it
            x = block(x, self.cos, torch.ones(1) * 0.5)
        return self.head(self.norm(x)) * mask.mean()

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (
            torch.randint(0, 37, (3, 6), generator=generator),
            torch.rand(3, generator=generator),
        )


class ConvNet(nn.Module):
    """Batch norm in two depths, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.body = nn.Sequential(nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
        self.head = nn.Linear(5 * 4 * 4, 7)
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.conv((x - self.mean).to(x.dtype))))
        return self.head(self.body(x).flatten(1))

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (torch.randn(4, 3, 8, 8, generator=generator),)


class Stack(nn.Module):
    """Layers in containers in containers; one layer is used twice, one weight is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(10, 14), nn.Sequential(nn.ReLU(), nn.Linear(14, 10)), nn.LayerNorm(10)
        )
        self.again = nn.Linear(10, 10)
        self.parts = nn.ModuleDict({"a": nn.Linear(10, 9), "b": nn.Linear(9, 10)})
        self.tiny = nn.Linear(10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(self.again(self.inner(x)))
        x = x + self.parts["b"](self.parts["a"](x))
        return self.tiny(x)

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (torch.randn(5, 10, generator=generator),)


class Tied(Transformer):
    """The head's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight
