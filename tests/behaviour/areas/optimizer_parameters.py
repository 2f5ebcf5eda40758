"""What optimizers step: groups, parameters from before wrapping, and steps in backward."""

from typing import Any

import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

from ..registry import holds
from . import common
from .optimizers import go_on, plain


@holds()
def groups_of_parameters(api: Any) -> Any:
    """Groups with options of their own, within one unit, are saved by name and train the same."""
    model = common.in_blocks(api)

    def grouped(model: Any) -> torch.optim.Optimizer:
        named = list(model.named_parameters())
        weights = [p for name, p in named if name.endswith("weight")]
        biases = [p for name, p in named if name.endswith("bias")]
        groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.2}]
        return torch.optim.AdamW(groups, lr=0.05)

    optimizer = grouped(model)
    losses = common.train(model, optimizer)
    state = api.FSDP.optim_state_dict(model, optimizer)
    before = plain(state)
    assert len(state["param_groups"]) == 2
    assert all(name.endswith("bias") for name in state["param_groups"][1]["params"])
    again = common.in_blocks(api)
    go_on(api, model, optimizer, again, grouped(again))
    return losses, before, common.full(api, again)


@holds()
def two_optimizers(api: Any) -> Any:
    """Two optimizers share a unit; only the gradients of one of them are dropped."""
    model = common.in_blocks(api)
    named = list(model.named_parameters())
    optimizers = [
        torch.optim.Adam([p for n, p in named if n.endswith("weight")], lr=0.05),
        torch.optim.AdamW([p for n, p in named if n.endswith("bias")], lr=0.1),
    ]
    losses = []
    for step, x in enumerate(common.batches(4)):
        loss = model(x).pow(2).mean()
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers[: 1 + step % 2]:
            optimizer.zero_grad(set_to_none=True)
    return losses, common.full(api, model)


@holds()
def dropped_gradients_between_forward_and_backward(api: Any) -> Any:
    """`zero_grad` between forward and backward acts as before forward."""
    results = []
    for set_to_none in (True, False):
        model = common.in_blocks(api)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for step, x in enumerate(common.batches(4)):
            if step % 2 == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            loss = model(x).pow(2).mean()
            if step % 2 == 1:
                optimizer.zero_grad(set_to_none=set_to_none)
            loss.backward()
            optimizer.step()
        results.append(common.full(api, model))
    assert common.close(*results)
    return results


@holds()
def built_before_wrapping(api: Any) -> Any:
    """With `use_orig_params` an optimizer that was built before wrapping trains the model."""
    model = common.net()
    expected = common.train_alone(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model = common.in_blocks(api, model)
    losses = common.train(model, optimizer)
    found = common.full(api, model)
    assert common.close(found, expected)
    return losses, found


@holds()
def built_before_wrapping_by_hand(api: Any) -> Any:
    """An older optimizer may have groups and a scheduler, and the units be made one after the other."""
    model = common.net()
    groups = [
        {"params": list(model.blocks.parameters())},
        {"params": list(model.head.parameters())},
    ]
    optimizer = torch.optim.AdamW(
        [*groups, {"params": model.stem.parameters(), "lr": 0.2}], lr=0.05
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model = common.blocks_by_hand(api, model, use_orig_params=True)
    model = api.FSDP(model, use_orig_params=True)
    losses = []
    for x in common.batches(3):
        losses += common.train(model, optimizer, inputs=[x])
        scheduler.step()
    state = api.FSDP.optim_state_dict(model, optimizer)
    return losses, common.full(api, model), sorted(state["state"]), scheduler.get_last_lr()


@holds()
def built_before_wrapping_without_orig_params(api: Any) -> Any:
    """Without `use_orig_params` such an optimizer changes nothing."""
    model = common.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = common.in_blocks(api, model, use_orig_params=False)
    losses = common.train(model, optimizer)
    found = common.full(api, model)
    assert common.close(found, common.initial())
    return losses, found


@holds()
def kinds_of_optimizers(api: Any) -> Any:
    """The usual optimizers train the same, one parameter at a time or all at once."""
    results = []
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.05, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.05),
    ):
        model = common.in_blocks(api)
        results.append((common.train(model, make(model.parameters())), common.full(api, model)))
    return results


@holds()
def changed_gradients(api: Any) -> Any:
    """A change of gradients in place, and a gradient set to None, act on the step."""
    model = common.in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (x,) = common.batches(1)
    model(x).pow(2).mean().backward()
    for name, parameter in model.named_parameters():
        if name.endswith("stem.weight"):
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.mul_(3)
    optimizer.step()
    after = common.full(api, model)
    assert torch.equal(after["stem.weight"], common.net().stem.weight)
    return after


@holds()
def closures(api: Any) -> Any:
    """An optimizer's step with a closure trains the same."""
    model = common.in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (x,) = common.batches(1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(3)], common.full(api, model)


@holds()
def groups_added_later(api: Any) -> Any:
    """A group that is added after wrapping trains."""
    model = common.in_blocks(api)
    optimizer = torch.optim.SGD(model.blocks.parameters(), lr=0.1)
    losses = common.train(model, optimizer)
    optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.2})
    losses += common.train(model, optimizer, inputs=common.batches(6)[3:])
    found = common.full(api, model)
    assert not torch.equal(found["head.weight"], common.net().head.weight)
    assert torch.equal(found["stem.weight"], common.net().stem.weight)
    return losses, found


class Named(torch.optim.Adam):
    """An optimizer whose state dict has names, as torch's ``_NamedOptimizer`` has."""

    def __init__(self, model: nn.Module, lr: float = 0.05) -> None:
        self.names = {p: name for name, p in model.named_parameters()}
        super().__init__(model.parameters(), lr=lr)

    def state_dict(self) -> dict[str, Any]:
        groups = [{**g, "params": [self.names[p] for p in g["params"]]} for g in self.param_groups]
        return {"state": {self.names[p]: s for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for p, name in self.names.items():
            if name in state_dict["state"]:
                self.state[p] = dict(state_dict["state"][name])


@holds()
def named_optimizers(api: Any) -> Any:
    """With `is_named_optimizer` states have the names of `model.named_parameters()`, and load into such an optimizer."""
    model = common.in_blocks(api)
    optimizer = Named(model)
    common.train(model, optimizer)
    state = api.FSDP.optim_state_dict(model, optimizer)
    before = plain(state)
    loaded = api.FSDP.optim_state_dict_to_load(model, optimizer, state, is_named_optimizer=True)
    assert loaded["state"].keys() <= {name for name, _ in model.named_parameters()}
    groups = [sorted(group["params"]) for group in loaded["param_groups"]]
    other = Named(model)
    other.load_state_dict(loaded)
    return before, groups, sorted(loaded["param_groups"][0]), common.train(model, other)


@holds()
def in_backward(api: Any) -> Any:
    """Optimizers of `_apply_optimizer_in_backward` step in backward, on reduced gradients, which are gone then."""
    results = []
    for when in ("before", "after"):
        model = common.net()
        if when == "before":
            _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        model = common.in_blocks(api, model)
        if when == "after":
            _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        losses = []
        for x in common.batches(3):
            loss = model(x).pow(2).mean()
            loss.backward()
            assert all(p.grad is None for p in model.parameters())
            losses.append(loss.item())
        found = common.full(api, model)
        assert not common.close(found, common.initial())
        results.append((losses, found))
    return results
