"""An optimizer that is built before the model is sharded.

FSDP1 with `use_orig_params=True` kept the parameter objects, so the order did not matter. `fully_shard` replaces them: the
optimizer then updates tensors that nobody reads any more, without an error, and the loss stays where it is. Where the lines
between allow it, the optimizer moves behind the constructor; where the optimizer is at hand there, the runtime gives it the
sharded parameters; anything else keeps its model as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted, given_for, shortened
from fsdp_migrate.codemods.optimizers.kept_elsewhere import (
    kept_by_methods,
    kept_globally,
    kept_loosely,
    kept_with_model,
)
from fsdp_migrate.codemods.optimizers.kept_parameters import Kept, kept_above, names_of, unchained
from fsdp_migrate.codemods.optimizers.remapping import (
    at_hand,
    attributes_of,
    bound_to,
    optimizers_of,
    remapped,
)
from fsdp_migrate.codemods.optimizers.sharding_places import Place, places
from fsdp_migrate.codemods.optimizers.straight_line import moved_behind
from fsdp_migrate.codemods.rule import Draft, Example, Move, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site

RULE = Rule(
    "FSDP501",
    "optimizer-before-sharding",
    "an optimizer built before fully_shard moves behind it, or is given the sharded parameters",
    """`fully_shard` replaces the parameters by DTensors. An optimizer made before holds the old ones: its steps change
nothing, and no error says so. FSDP1 with `use_orig_params=True` kept the parameter objects, so there this order trained. With
`use_orig_params=False`, the default, it trained nothing under FSDP1 either: the flat parameters took over. The migrated
program trains in both cases, and the message says so.

**Moved**: in straight-line code the optimizer's statement goes behind the constructor, with what is made from it (a scheduler)
and what it is made from (lists and groups of parameters). The shapes, names and `requires_grad` that groups are made by are
the same there. A statement moves only if it does nothing but make values of names, builtins, `torch.optim` and the model's
parameters, and if what stands between neither names what it binds, nor changes what it reads, nor does anything to the model
but move or load it.

**Given the sharded parameters**: where the optimizer cannot move but is at hand where the model is sharded, as a parameter, an
attribute or a name, the constructor goes into `with remap_optimizer(optimizer, model):`. It puts each sharded parameter in
the place of the one with the same name, and refuses an optimizer with state: FSDP1 failed in its next step.

**By hand**: parameters that something else keeps, such as a list that is clipped later; and an optimizer in front of a
constructor whose model a loop, a lambda, a container or `getattr` gives it, because no name says whose parameters it has. The
model stays as it is until they are taken after sharding.""",
    (
        Example(
            "the optimizer first",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # fused?
model = FSDP(model, use_orig_params=True)
train(model, optimizer)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

model = Net().cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # fused?
train(model, optimizer)
""",
            message="moves behind the constructor",
        ),
        Example(
            "an order in which FSDP1 trained nothing",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = FSDP(model)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
            message="under FSDP1 it trained nothing",
        ),
        Example(
            "a scheduler, a policy between, comments and paragraphs",
            """\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from model import Block, Net


def main(args):
    model = Net(args)

    # decayed by steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, args.steps)

    # every block is a unit
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    torch.cuda.set_device(args.gpu)
    model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True)

    return model, optimizer, scheduler
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

from model import Block, Net


def main(args):
    model = Net(args)

    torch.cuda.set_device(args.gpu)
    # every block is a unit
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)

    # decayed by steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, args.steps)

    return model, optimizer, scheduler
""",
            message="moves behind the constructor",
        ),
        Example(
            "groups of parameters",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

decay, no_decay = [], []
for name, parameter in model.named_parameters():
    if parameter.ndim >= 2:
        decay.append(parameter)
    else:
        no_decay.append(parameter)
groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups)
model = FSDP(model, use_orig_params=True)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
decay, no_decay = [], []
for name, parameter in model.named_parameters():
    if parameter.ndim >= 2:
        decay.append(parameter)
    else:
        no_decay.append(parameter)
groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups)
""",
            message="moves behind the constructor",
        ),
        Example(
            "a list that is clipped later",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

trainable = [p for p in model.parameters() if p.requires_grad]
model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(trainable)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable)
""",
            message="moves behind the constructor",
        ),
        Example(
            "an optimizer from the caller",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def setup(model, optimizer):
    model = FSDP(model, use_orig_params=True)
    return model, optimizer
""",
            """\
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


def setup(model, optimizer):
    with remap_optimizer(optimizer, model):
        fully_shard(model)
    return model, optimizer
""",
            message="remap_optimizer gives it the sharded parameters",
        ),
        Example(
            "an optimizer that another method built",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def setup(self, rank):
        torch.cuda.set_device(rank)
        # all ranks at once
        self.model = FSDP(self.model, use_orig_params=True)
""",
            """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def setup(self, rank):
        torch.cuda.set_device(rank)
        # all ranks at once
        with remap_optimizer(self.optimizer, self.model):
            fully_shard(self.model)
""",
            message="remap_optimizer gives it the sharded parameters",
        ),
        Example(
            "a function that may do anything to the model stands between",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
freeze(model)
model = FSDP(model, use_orig_params=True)
""",
            """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
freeze(model)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
            message="remap_optimizer gives it the sharded parameters",
        ),
        Example(
            "an optimizer that only some runs have, and only there",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if train:
    optimizer = torch.optim.AdamW(model.parameters())
    prepare(model)
model = FSDP(model, use_orig_params=True)
""",
            message="after the model is sharded",
        ),
        Example(
            "parameters that something else keeps",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

average = MovingAverage(model.parameters())
model = FSDP(model, use_orig_params=True)
""",
            message="after the model is sharded",
        ),
        Example(
            "a list for clipping, taken in front of something unknown",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

trainable = [p for p in model.parameters() if p.requires_grad]
freeze(model)
model = FSDP(model, use_orig_params=True)
torch.nn.utils.clip_grad_norm_(trainable, 1.0)
""",
            message="after the model is sharded",
        ),
        Example(
            "parameters that are looked at, or given to the constructor",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

print(sum(p.numel() for p in model.parameters()))
names = [name for name, _ in model.named_parameters()]
frozen = [p for p in model.parameters() if not p.requires_grad]
model = FSDP(model, ignored_states=frozen)
print(names)
""",
            """\
from fsdp_migrate.runtime import shard_model

print(sum(p.numel() for p in model.parameters()))
names = [name for name, _ in model.named_parameters()]
frozen = [p for p in model.parameters() if not p.requires_grad]
model = shard_model(model, ignored_states=frozen)
print(names)
""",
            quiet=True,
        ),
        Example(
            "a copy of the model, taken before",
            """\
import copy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

ema = copy.deepcopy(model)
model = FSDP(model)
ema = FSDP(ema)
""",
            """\
import copy

from torch.distributed.fsdp import fully_shard

ema = copy.deepcopy(model)
fully_shard(model)
fully_shard(ema)
""",
            quiet=True,
        ),
        Example(
            "checkpointing first, compiling last",
            """\
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

apply_activation_checkpointing(model)
model = FSDP(model)
model = torch.compile(model)
""",
            """\
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard

apply_activation_checkpointing(model)
fully_shard(model)
model = torch.compile(model)
""",
            quiet=True,
        ),
        Example(
            "the optimizer last",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
            quiet=True,
        ),
        Example(
            "an optimizer's name, and what makes one",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def setup(model, optimizer):
    model = FSDP(model)
    return model, optimizer(model.parameters())
""",
            """\
from torch.distributed.fsdp import fully_shard


def setup(model, optimizer):
    fully_shard(model)
    return model, optimizer(model.parameters())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_BY_HAND = (
    "take the parameters after the model is sharded: fully_shard replaces them, and what is kept here would go on with "
    "the old ones"
)
_IN_VAIN = "under FSDP1 it trained nothing: use_orig_params=False replaced the parameters as well"


def find(context: Context) -> Iterator[Draft]:
    """Parameters that are taken from a model above its constructor, and kept: in an optimizer, as a rule."""
    kept: dict[ast.stmt, list[_Found]] = {}
    for plan in context.plans.values():
        for place in places(context, plan):
            for found in _found(context, place):
                kept.setdefault(found.kept.chain[0], []).append(found)
    yield from _decide(context, [found for founds in kept.values() for found in founds])
    yield from _given_optimizers(context)
    yield from _held_optimizers(context)


@dataclass(frozen=True, eq=False)
class _Found:
    """Parameters that are kept from before a model is sharded at a place."""

    kept: Kept
    place: Place


def _found(context: Context, place: Place) -> Iterator[_Found]:
    module = context.module
    scope = module.scope_of(place.call)
    names = names_of(place.model, module, scope)
    kept = [
        one
        for one in kept_above(context, scope, names, place.call)
        if not _is_passed(context, one, place)
    ]
    if place.function is None:
        for find in (kept_by_methods, kept_with_model, kept_globally):
            kept += find(context, place.call, place.model)
        kept += [
            replace(one, optimizer=False, unseen=True)
            for one in kept_loosely(context, place.call, place.model)
        ]
    seen = {one.node for one in kept if not one.unseen}
    yield from (_Found(one, place) for one in kept if not one.unseen or one.node not in seen)


def _is_passed(context: Context, kept: Kept, place: Place) -> bool:
    """Whether the optimizer is given to the function that shards the model, which deals with it."""
    if place.function is None or not kept.optimizer:
        return False
    target = bound_to(kept)
    for module in context.models.project.modules:
        for name, position in optimizers_of(module, place.function):
            given = given_for(place.call, name, position)
            if given is not None and target and dotted(given) == target:
                return True
    return False


def _decide(context: Context, founds: list[_Found]) -> Iterator[Draft]:
    """What becomes of each: all that is kept in front of one constructor moves, or each is dealt with by itself."""
    by_anchor: dict[ast.stmt, list[_Found]] = {}
    for found in founds:
        by_anchor.setdefault(_anchor(context, found, founds), []).append(found)
    for anchor, together in by_anchor.items():
        moved = _moved(context, together, anchor)
        if moved is not None:
            yield from _moves(context, together, moved, anchor)
            continue
        done: set[ast.expr] = set()
        for found in together:
            draft = _remapped(context, found)
            if draft is not None:
                yield draft
            elif found.kept.node not in done:
                done.add(found.kept.node)
                yield _by_hand(context, found)


def _anchor(context: Context, found: _Found, founds: Iterable[_Found]) -> ast.stmt:
    """The last statement that shards something of which the same parameters are."""
    same = [
        context.module.statement(other.place.call)
        for other in founds
        if set(other.kept.chain) & set(found.kept.chain)
    ]
    return max(same, key=lambda statement: statement.lineno)


def _moved(context: Context, founds: list[_Found], anchor: ast.stmt) -> list[ast.stmt] | None:
    """The statements that go behind the constructor; None if they cannot."""
    module = context.module
    calls = [found.place.call for found in founds]
    if isinstance(anchor, ast.Return) or not context.stands_alone(anchor):
        return None
    if any(found.place.function is not None or found.kept.unseen for found in founds):
        return None
    if any(call not in ast.walk(anchor) for call in calls if module.statement(call) is anchor):
        return None
    models = {dotted(found.place.model) for found in founds} - {""}
    for found in founds:
        scope = module.scope_of(found.place.call)
        dumped = names_of(found.place.model, module, scope)
        models |= {n for n in scope.bindings if ast.dump(ast.Name(n, ast.Load())) in dumped}
    seeds = [statement for found in founds for statement in found.kept.chain]
    moved = moved_behind(context, seeds, anchor, sorted(models)) if models else None
    if moved is None or not all(_has_lines(context, statement) for statement in moved):
        return None
    return moved


def _has_lines(context: Context, statement: ast.stmt) -> bool:
    try:
        context.syntax.statement(statement)
    except LookupError:
        return False
    return True


def _moves(
    context: Context, founds: list[_Found], moved: list[ast.stmt], anchor: ast.stmt
) -> Iterator[Draft]:
    syntax = context.syntax
    shifts = tuple(Move(syntax.statement(s), syntax.statement(anchor)) for s in moved)
    sites = frozenset(found.place.plan.site for found in founds)
    message = (
        "moves behind the constructor, with what belongs to it: fully_shard replaces the parameters"
    )
    for node in dict.fromkeys(found.kept.node for found in founds):
        note = _note([found for found in founds if found.kept.node is node])
        construct = _construct(context, node)
        yield Draft(RULE, node, Action.REWRITE, f"{message}{note}", construct, sites, places=shifts)
        shifts = ()


def _note(founds: Iterable[_Found]) -> str:
    """What to say of the training under FSDP1, which the new order repairs."""
    constants = [f.place.plan.constructor.constant("use_orig_params", False) for f in founds]
    splat = any(f.place.plan.constructor.splat for f in founds)
    if any(constant in (False, None) for constant in constants) and not splat:
        return f"; {_IN_VAIN}"
    if all(constant is True for constant in constants):
        return ""
    return "; where use_orig_params was False, it trained nothing under FSDP1"


def _remapped(context: Context, found: _Found) -> Draft | None:
    """The constructor in a context that gives the optimizer the sharded parameters; None if it is not at hand there."""
    optimizer = at_hand(context, found.kept, found.place)
    if optimizer is None:
        return None
    return _enclosed(context, found.place, found.kept.node, optimizer, _note([found]))


def _given_optimizers(context: Context) -> Iterator[Draft]:
    """Functions that shard a model and are given its optimizer as well."""
    module = context.module
    for plan in context.plans.values():
        constructor = plan.constructor
        function = module.enclosing_function(constructor.call)
        if constructor.context.module is not module or function is None or not constructor.model:
            continue
        place = Place(plan, module, constructor.call, constructor.model)
        for name, _ in optimizers_of(module, function):
            draft = _enclosed(context, place, constructor.call, name)
            if draft is not None:
                yield draft


def _held_optimizers(context: Context) -> Iterator[Draft]:
    """Objects that are given a model and its optimizer, and shard the model in another method than `__init__`."""
    module = context.module
    for plan in context.plans.values():
        constructor = plan.constructor
        call, model = constructor.call, constructor.model and unchained(constructor.model)
        owner = module.enclosing_class(call)
        if constructor.context.module is not module or not isinstance(model, ast.Attribute):
            continue
        if owner is None or getattr(module.enclosing_function(call), "name", "") == "__init__":
            continue
        place = Place(plan, module, call, model)
        for name in attributes_of(module, owner):
            found = _enclosed(context, place, call, name)
            if found is not None:
                yield found


def _enclosed(
    context: Context, place: Place, node: ast.expr, optimizer: str, note: str = ""
) -> Draft | None:
    around = remapped(context, place, optimizer)
    if around is None:
        return None
    manager, needs = around
    return Draft(
        RULE,
        node,
        Action.RUNTIME,
        f"remap_optimizer gives it the sharded parameters: fully_shard replaces them{note}",
        _construct(context, node),
        frozenset({place.plan.site}),
        places=(manager,),
        needs=needs,
    )


def _by_hand(context: Context, found: _Found) -> Draft:
    node = found.kept.node
    sites: frozenset[Site] = frozenset({found.place.plan.site})
    return Draft(RULE, node, Action.MANUAL, _BY_HAND, _construct(context, node), sites, silent=True)


def _construct(context: Context, node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return f"{context.source(node.func)}(...)"
    return shortened(context.source(node))


Command = command(find, __doc__ or "")
