"""Where a forward may leave a part of its model unused, which gets zero gradients as under FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import MODEL, TRAIN, analysed

_LOOP = "for layer in self.head:\n            "
_METHOD = "return self.{}(x)\n\n    def {}(self, x):\n        return self.head(x)"
# Bodies of a forward that may not use `self.head`, or do not train it.
NOT_ALWAYS = (
    "return x",
    "return self.head(x) if x.any() else x",
    "return x.any() and self.head(x)",
    "if x.any():\n            return x\n        return self.head(x)",
    "if x.any():\n            x = self.head(x)\n        return x",
    "while x.any():\n            x = self.head(x)\n        return x",
    f"{_LOOP}if x.any():\n                continue\n            x = layer(x)\n        return x",
    f"{_LOOP}if x.any():\n                x = layer(x)\n        return x",
    "for i, layer in enumerate(self.head):\n            x = i\n        return x",
    "for layer in self.head[:depth]:\n            x = layer(x)\n        return x",
    "return sum(layer(x) for layer in self.head if x.any())",
    "return sum(layer(x) for layer in self.head[1:])",
    "for layer in self.head[1:]:\n            x = layer(x)\n        return x",
    "return self.head[:1](x)",
    "return self.head[0](x)",
    "return self.head['a'](x)",
    "for i in range(3):\n            x = self.head[i](x)\n        return x",
    "for i in range(0, n, 2):\n            x = self.head[i](x)\n        return x",
    "return next(iter(self.head))(x)",
    "for layer in islice(self.head, 1):\n            x = layer(x)\n        return x",
    "y = self.head(x)\n        return x",
    "for layer in self.head:\n            y = layer(x)\n        return x",
    "return x * (self.head(x) > 0)",
    "return x * self.head(x).round()",
    "return x + self.head(x).data",
    "return x * float(self.head(x).mean())",
    "return x.to(self.head.weight.dtype)",
    "return x * len(list(self.head.parameters()))",
    "if self.head(x).any():\n            x = -x\n        return x",
    "assert self.head is not None\n        return x",
    "with torch.set_grad_enabled(False):\n            x = self.head(x)\n        return x",
    "try:\n            x = self.head(check(x))\n        except ValueError:\n            x = -x\n        return x",
    "match mode:\n            case 1:\n                x = self.head(x)\n        return x",
    "return F.linear(x, self.head.weight)",
    "return self.head[self.task](x)",
    "return self.head(x).detach()",
    "with torch.no_grad():\n            x = self.head(x)\n        return x",
    "return self.head(x), x",
    "return {'x': x, 'y': self.head(x)}",
    "return Output(x, self.head(x))",
    "y = {'x': x, 'y': self.head(x)}\n        return y",
    "y = {}\n        y['y'] = self.head(x)\n        return y",
    "return x + self.head(x).argmax()",
    "self.kept = self.head(x)\n        return x",
    _METHOD.format("run", "other"),
    _METHOD.format("run", "run").replace("    def", "    @torch.no_grad()\n    def"),
)
# Those that always do.
ALWAYS = (
    _METHOD.format("run", "run"),
    "if x.any():\n            return self.head(x)\n        return self.head(-x)",
    "if x.any():\n            x = self.head(x)\n        else:\n            x = self.head(-x)\n        return x",
    "if x.any():\n            raise ValueError\n        return self.head(x)",
    "return self.head(x) if x.any() else -self.head(x)",
    "with torch.autocast('cpu'):\n            return self.head(x)",
    f"{_LOOP}if x.any():\n                x = run(layer, x)\n            else:\n                x = layer(x)\n        return x",
    "for i in range(len(self.head)):\n            x = self.head[i](x)\n        return x",
    "for i, layer in enumerate(self.head):\n            x = layer(x)\n        return x",
    "for layer, _ in zip(self.head, x):\n            x = layer(x)\n        return x",
    "return F.linear(x, self.head.weight, self.head.bias)",
    "y, _ = self.head(x.float().view(x.shape[0], -1))\n        return y",
    "try:\n            x = self.head(x)\n        finally:\n            done()\n        return x",
    "x = self.head(x)\n        return x, loss(x)",
)


@pytest.mark.parametrize("forward", NOT_ALWAYS)
def test_a_part_that_a_forward_may_not_use(tmp_path: Path, forward: str) -> None:
    """FSDP1 gave its parameters zero gradients, on which weight decay acts: the runtime goes on doing so."""
    assert (
        "fill_unused"
        not in analysed(tmp_path, {"train.py": TRAIN, "model.py": MODEL}).after["train.py"]
    )
    model = MODEL.replace("return self.head(x)", forward)
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": model}).after
    assert "    fully_shard(model)\n    fill_unused_gradients(model)\n" in after["train.py"]


@pytest.mark.parametrize(
    "made",
    [
        "setattr(self, name, nn.Linear(8, 8))",
        "self.head.register_parameter('gamma', nn.Parameter(torch.ones(8)))",
        "self.add_module('norm', nn.LayerNorm(8))",
        "self.add_module(name='norm', module=nn.LayerNorm(8))",
        "self.add_module(*('norm', nn.LayerNorm(8)))",
    ],
)
def test_a_part_that_has_no_name_in_the_class(tmp_path: Path, made: str) -> None:
    model = MODEL.replace(
        "self.head = nn.Linear(8, 8)", f"self.head = nn.Linear(8, 8)\n        {made}"
    )
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": model}).after
    assert "fill_unused_gradients(model)" in after["train.py"]


@pytest.mark.parametrize("forward", ALWAYS)
def test_a_part_that_every_forward_uses(tmp_path: Path, forward: str) -> None:
    model = MODEL.replace("return self.head(x)", forward)
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": model}).after
    assert "fully_shard(model)" in after["train.py"]
    assert "fill_unused" not in after["train.py"]


def test_a_layer_without_bias_whose_weight_alone_is_used(tmp_path: Path) -> None:
    model = MODEL.replace("return self.head(x)", "return F.linear(x, self.head.weight)")
    model = model.replace("nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)")
    after = analysed(tmp_path, {"train.py": TRAIN, "model.py": model}).after
    assert "fully_shard(model)" in after["train.py"]
    assert "fill_unused" not in after["train.py"]
