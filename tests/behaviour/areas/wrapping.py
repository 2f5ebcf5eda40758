"""Which modules become units, by policy and by hand."""

import functools
import re
from typing import Any

import torch
from torch import nn

from ..registry import each, holds
from .common import Block, close, error, full, in_blocks, net, said, train, train_alone, tree, units


def nested(width: int = 5) -> nn.Sequential:
    """Two layers, and two more in a container: 30 parameters each."""
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width), inner)


def by_size(api: Any, least: int, **options: Any) -> Any:
    policy = api.wrap.size_based_auto_wrap_policy
    return functools.partial(policy, min_num_params=least, **options)


class WithBatchNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.other = nn.SyncBatchNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


@holds()
def one_unit_without_a_policy(api: Any) -> Any:
    """Without a policy the whole model is one unit, and no other module is."""
    found = tree(api, api.FSDP(net()))
    assert [unit for _, _, unit in found] == [True] + [False] * (len(found) - 1)
    return found


@holds()
def module_wrap_policy(api: Any) -> Any:
    """`ModuleWrapPolicy` makes a unit of each module of its classes, and of the root."""
    model = in_blocks(api)
    assert units(api, model) == ["", "blocks.0", "blocks.1"]
    return tree(api, model)


def transformer() -> nn.Module:
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


def lists() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 5), nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)]))


def larger_lists() -> nn.Module:
    return nn.Sequential(nn.ModuleList([nn.Linear(10, 10)]), nn.ModuleDict({"a": nn.Linear(9, 9)}))


def with_attention() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 10), nn.MultiheadAttention(100, 1))


def layers_of_transformers(api: Any) -> Any:
    layers = {nn.TransformerEncoderLayer, nn.TransformerDecoderLayer}
    return functools.partial(api.wrap.transformer_auto_wrap_policy, transformer_layer_cls=layers)


def without_layers(api: Any) -> Any:
    leaves = api.wrap.size_based_auto_wrap_policy.FORCE_LEAF_MODULES | {nn.Linear}
    return by_size(api, 40, force_leaf_modules=leaves)


def blocks(api: Any) -> Any:
    return functools.partial(
        api.wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block)
    )


def large_layers(api: Any) -> Any:
    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or (isinstance(module, nn.Linear) and nonwrapped_numel > 20)

    return policy


def blocks_or_large(api: Any) -> Any:
    return functools.partial(api.wrap._or_policy, policies=[blocks(api), by_size(api, 80)])


POLICIES: dict[str, tuple[Any, ...]] = {
    "transformer_auto_wrap_policy": (
        "`transformer_auto_wrap_policy` makes a unit of each layer of its classes.",
        transformer, layers_of_transformers, ["", "encoder.layers.0", "decoder.layers.0"],
    ),
    "size_based_policy_adds_up_children": (
        "`size_based_auto_wrap_policy` makes a unit of a container whose children are too small alone.",
        nested, lambda api: by_size(api, 40), ["", "2"],
    ),
    "size_based_policy_with_its_default": (
        "The default threshold of `size_based_auto_wrap_policy` leaves a small model one unit.",
        nested, lambda api: api.wrap.size_based_auto_wrap_policy, [""],
    ),
    "size_based_policy_excludes_containers": (
        "`size_based_auto_wrap_policy` leaves a `ModuleList` alone, however large it is.",
        lists, lambda api: by_size(api, 40), [""],
    ),
    "size_based_policy_wraps_children_of_containers": (
        "The children of a `ModuleList` become units where they are large enough.",
        larger_lists, lambda api: by_size(api, 40), ["", "0.0", "1.a"],
    ),
    "size_based_policy_keeps_attention_whole": (
        "`size_based_auto_wrap_policy` does not look inside `MultiheadAttention`.",
        with_attention, lambda api: by_size(api, 40), ["", "0"],
    ),
    "size_based_policy_with_other_leaves": (
        "`force_leaf_modules` names further classes that are not made units.",
        larger_lists, without_layers, [""],
    ),
    "size_based_policy_with_other_exclusions": (
        "`exclude_wrap_modules` replaces the containers that are not wrapped.",
        nested, lambda api: by_size(api, 40, exclude_wrap_modules={nn.Sequential}), [""],
    ),
    "always_wrap_policy": (
        "`always_wrap_policy` makes a unit of every module.",
        nested, lambda api: api.wrap.always_wrap_policy, ["", "0", "1", "2", "2.0", "2.1"],
    ),
    "always_wrap_policy_spares_ignored_modules": (
        "Ignored modules do not become units, whatever the policy says.",
        nested, lambda api: api.wrap.always_wrap_policy, ["", "0", "2", "2.1"], ["1", "2.0"],
    ),
    "size_based_policy_does_not_count_ignored_modules": (
        "A size does not include the parameters of ignored modules.",
        nested, lambda api: by_size(api, 40), [""], ["1", "2.0"],
    ),
    "lambda_auto_wrap_policy": (
        "`lambda_auto_wrap_policy` asks its function about each module.",
        net, blocks, ["", "blocks.0", "blocks.1"],
    ),
    "a_function_is_a_policy": (
        "A function of a module, `recurse` and the parameters not wrapped yet is a policy.",
        net, large_layers, None,
    ),
    "policies_are_joined_by_or": (
        "`_or_policy` makes a unit of what one of its policies wants.",
        net, blocks_or_large, None,
    ),
}  # fmt: skip


@each(POLICIES)
def units_of_a_policy(
    api: Any, build: Any, policy: Any, expected: Any, ignored: tuple[str, ...] = ()
) -> Any:
    model = build()
    options = (
        {"ignored_modules": [model.get_submodule(name) for name in ignored]} if ignored else {}
    )
    model = api.FSDP(model, auto_wrap_policy=policy(api), **options)
    assert expected is None or units(api, model) == expected
    return tree(api, model)


REFUSED: dict[str, tuple[Any, ...]] = {
    "custom_policy_returns_a_bool_or_a_dict": (
        "What a `CustomPolicy` may return is checked, with an error.",
        lambda api: {"auto_wrap_policy": api.wrap.CustomPolicy(lambda module: 3)},
    ),
    "a_policy_must_be_callable": (
        "A policy that cannot be called is an error.", lambda api: {"auto_wrap_policy": 7}
    ),
    "unknown_arguments": (
        "An argument that FSDP1 does not know is a TypeError.", lambda api: {"shards": 2}
    ),
}  # fmt: skip


@each(REFUSED)
def refused(api: Any, options: Any) -> Any:
    return error(lambda: api.FSDP(net(), **options(api))).split(":")[0]


@holds()
def custom_policy_with_options_of_a_unit(api: Any) -> Any:
    """`CustomPolicy` gives single units options of their own, by a dict."""
    strategies = api.ShardingStrategy

    def choose(module: nn.Module) -> Any:
        if isinstance(module, nn.Linear):
            return {"sharding_strategy": strategies.SHARD_GRAD_OP}
        return isinstance(module, Block)

    policy = api.wrap.CustomPolicy(choose)
    model = api.FSDP(net(), auto_wrap_policy=policy)
    found = api.FSDP.fsdp_modules(model)
    return tree(api, model), [unit.sharding_strategy.name for unit in found], train(model)


@holds(in_place="the error prints the model without wrappers")
def a_policy_refuses_wrapped_parts(api: Any) -> Any:
    """With a policy, a model of which a part is wrapped already is refused, and the part named."""
    direct, inside = nested(), nested()
    direct[0] = api.FSDP(direct[0])
    inside[2][1] = api.FSDP(inside[2][1])
    policy = api.wrap.size_based_auto_wrap_policy
    texts = [error(lambda m=m: api.FSDP(m, auto_wrap_policy=policy)) for m in (direct, inside)]
    assert "requires modules to not already have FSDP applied but found 2.1 in" in texts[1]
    return texts


@holds()
def batch_norms_are_units_of_their_own(api: Any) -> Any:
    """With a policy and mixed precision each batch norm is a unit that stays in full precision, and a warning says so."""
    options = {
        "auto_wrap_policy": api.wrap.ModuleWrapPolicy({nn.Linear}),
        "mixed_precision": api.MixedPrecision(param_dtype=torch.bfloat16),
    }
    built = []
    texts = said(lambda: built.append(api.FSDP(WithBatchNorms(), **options)))
    assert units(api, built[0]) == ["", "linear", "norm", "other"]
    wanted = [text for text in texts if "mixed precision" in text.lower()]
    assert wanted, texts
    # The classes are a set, in any order; torch 2.14 corrected the words around it.
    return tree(api, built[0]), [sorted(re.findall(r"<class '[^']+'>", each)) for each in wanted]


@holds()
def batch_norms_inside_of_a_unit(api: Any) -> Any:
    """A module inside of one unit becomes a unit itself where the policy wants both."""
    container = nn.Sequential(WithBatchNorms())

    def policy(module: nn.Module, recurse: bool, **_: Any) -> bool:
        return recurse or isinstance(module, WithBatchNorms | nn.BatchNorm1d)

    model = api.FSDP(container, auto_wrap_policy=policy)
    assert units(api, model) == ["", "0", "0.norm"]
    return tree(api, model)


@holds()
def wrap_by_hand(api: Any) -> Any:
    """Units nest as they are written by hand, and train as the model does without FSDP."""
    model = net()
    alone = train_alone(model)
    model.blocks[0].up = api.FSDP(model.blocks[0].up)
    model.blocks[0] = api.FSDP(model.blocks[0])
    model.head = api.FSDP(model.head)
    model = api.FSDP(model)
    assert units(api, model) == ["", "blocks.0", "blocks.0.up", "head"]
    losses = train(model)
    assert close(full(api, model), alone)
    return tree(api, model), losses, full(api, model)


@holds()
def wrap_in_a_context(api: Any) -> Any:
    """Inside of `enable_wrap`, `wrap` makes a unit with the options given to the context."""
    group = torch.distributed.new_group()
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP, process_group=group):
        layer = api.wrap.wrap(nn.Linear(5, 5))
    assert layer.process_group is group
    return tree(api, layer), layer.rank, layer.world_size


@holds()
def wrap_outside_of_a_context(api: Any) -> Any:
    """Outside of `enable_wrap`, `wrap` gives back the module itself."""
    layer = nn.Linear(5, 5)
    assert api.wrap.wrap(layer) is layer
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP):
        pass
    assert api.wrap.wrap(layer) is layer
    return tree(api, layer)


@holds()
def wrap_overrides_options_of_the_context(api: Any) -> Any:
    """Options given to `wrap` come before the context's."""
    groups = [torch.distributed.new_group() for _ in range(2)]
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP, process_group=groups[0]):
        layer = api.wrap.wrap(nn.Linear(5, 5), process_group=groups[1])
    assert layer.process_group is groups[1]
    return layer.world_size


@holds()
def wrap_in_a_constructor(api: Any) -> Any:
    """A model whose constructor calls `wrap` has units inside of the context only."""

    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = api.wrap.wrap(nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    plain = Wrapping()
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP):
        model = api.wrap.wrap(Wrapping())
    assert units(api, plain) == []
    assert units(api, model) == ["", "inner"]
    return tree(api, plain), tree(api, model)


@holds()
def contexts_do_not_nest(api: Any) -> Any:
    """`enable_wrap` inside of itself is an error."""

    def nest() -> None:
        with api.wrap.enable_wrap(wrapper_cls=api.FSDP), api.wrap.enable_wrap(wrapper_cls=api.FSDP):
            pass

    return error(nest)


@holds()
def wrap_with_a_policy_in_a_context(api: Any) -> Any:
    """A policy given to the context is the policy of each `wrap` in it."""
    policy = api.wrap.ModuleWrapPolicy({Block})
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP, auto_wrap_policy=policy):
        model = api.wrap.wrap(net())
    assert units(api, model) == ["", "blocks.0", "blocks.1"]
    return tree(api, model)


@holds()
def frozen_beside_trained_in_one_unit(api: Any) -> Any:
    """With a policy, `use_orig_params=False` refuses units that mix frozen and trained parameters; True warns."""

    def build(use_orig_params: bool) -> Any:
        model = net()
        model.blocks[0].up.requires_grad_(False)
        return in_blocks(api, model, use_orig_params=use_orig_params)

    refusal, texts = error(lambda: build(False)), said(lambda: build(True))
    assert "blocks.0.up.weight" in refusal
    wanted = [text for text in texts if "requires_grad" in text]
    assert wanted
    return refusal, wanted
