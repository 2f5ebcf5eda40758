"""An optimizer that is built before the model is sharded.

FSDP1 with `use_orig_params=True` kept the parameter objects, so the order did not matter. `fully_shard` replaces them: the
optimizer then updates tensors that nobody reads any more, without an error, and the loss stays where it is. Where the lines
between allow it, the optimizer moves behind the constructor; where the optimizer is at hand there, the runtime gives it the
sharded parameters; anything else keeps its model as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.kept_parameters import Kept, kept_above, kept_from, names_of
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Enclose, Example, Move, Rule
from fsdp_migrate.codemods.straight_line import dotted, moved_behind
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Module, Parameter
from fsdp_migrate.index.order import after

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

**By hand**: parameters that something else keeps, such as a list that is clipped later. The model stays as it is until
they are taken after sharding.""",
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
_OPTIMIZERS = ("optimizer", "optim", "opt")
# What a program reads of an optimizer.
_MEMBERS = frozenset(
    {"param_groups", "state", "step", "zero_grad", "state_dict", "load_state_dict"}
)


def find(context: Context) -> Iterator[Draft]:
    """Parameters that are taken from a model above its constructor, and kept: in an optimizer, as a rule."""
    kept: dict[ast.stmt, list[_Found]] = {}
    for plan in context.plans.values():
        for place in _places(context, plan):
            for found in _found(context, place):
                kept.setdefault(found.kept.chain[0], []).append(found)
    yield from _decide(context, [found for founds in kept.values() for found in founds])
    yield from _given_optimizers(context)


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a model, known by an expression, becomes sharded: the constructor, or a call of a function that has it.

    Attributes:
        function: the function that is called; None at the constructor itself.
    """

    plan: Plan
    module: Module
    call: ast.Call
    model: ast.expr
    function: ast.AST | None = None


@dataclass(frozen=True, eq=False)
class _Found:
    """Parameters that are kept from before a model is sharded at a place."""

    kept: Kept
    place: _Place


def _places(context: Context, plan: Plan) -> Iterator[_Place]:
    constructor = plan.constructor
    if constructor.model is None:
        return
    module = constructor.context.module
    first = _Place(plan, module, constructor.call, constructor.model)
    for place in _outwards(context, first, 0):
        if place.module is context.module:
            yield place


def _outwards(context: Context, place: _Place, depth: int) -> Iterator[_Place]:
    """The place itself, and the calls of a function that shards what it is given."""
    yield place
    module, model = place.module, place.model
    function = module.enclosing_function(place.call)
    if depth > 3 or function is None or not isinstance(model, ast.Name):
        return
    found = module.lookup(model.id, module.scope_of(model))
    for binding in found[1] if found else ():
        if isinstance(binding, Parameter) and binding.function is function:
            for where, caller in context.models.callers_of(function):
                given = _given(caller, binding)
                if given is not None:
                    outer = _Place(place.plan, where, caller, given, function)
                    yield from _outwards(context, outer, depth + 1)


def _given(call: ast.Call, parameter: Parameter) -> ast.expr | None:
    """What a call gives for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == parameter.argument.arg:
            return keyword.value
    position = parameter.position
    if position is None or position >= len(call.args):
        return None
    return call.args[position]


def _found(context: Context, place: _Place) -> Iterator[_Found]:
    module = context.module
    scope = module.scope_of(place.call)
    names = names_of(place.model, module, scope)
    for kept in kept_above(context, scope, names, place.call):
        if not _is_passed(context, kept, place):
            yield _Found(kept, place)
    if place.function is None and isinstance(place.model, ast.Attribute):
        for kept in _kept_by_init(context, place):
            yield _Found(kept, place)


def _kept_by_init(context: Context, place: _Place) -> Iterator[Kept]:
    """`self.model` wrapped in one method, its parameters kept in `__init__`, which runs first."""
    module = context.module
    method, owner = module.enclosing_function(place.call), module.enclosing_class(place.call)
    if owner is None or getattr(method, "name", "") == "__init__":
        return
    for call in module.calls:
        around = module.enclosing_function(call)
        if getattr(around, "name", "") != "__init__" or module.enclosing_class(call) is not owner:
            continue
        if any(
            module.enclosing_function(caller) is around and after(call, caller)
            for _, caller in context.models.callers_of(method or owner)
        ):
            continue  # sharded already
        yield from kept_from(context, call, [ast.dump(place.model)])


def _is_passed(context: Context, kept: Kept, place: _Place) -> bool:
    """Whether the optimizer is given to the function that shards the model, which deals with it."""
    if place.function is None or not kept.optimizer:
        return False
    target = _target(kept)
    for module in context.models.project.modules:
        scope = module.scopes.get(place.function)
        for bindings in scope.bindings.values() if scope else ():
            for binding in bindings:
                if isinstance(binding, Parameter) and _is_optimizer(context, module, binding):
                    given = _given(place.call, binding)
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
            remapped = _remapped(context, found)
            if remapped is not None:
                yield remapped
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
    if any(found.place.function is not None for found in founds):
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
    places = tuple(Move(syntax.statement(s), syntax.statement(anchor)) for s in moved)
    sites = frozenset(found.place.plan.site for found in founds)
    message = (
        "moves behind the constructor, with what belongs to it: fully_shard replaces the parameters"
    )
    for node in dict.fromkeys(found.kept.node for found in founds):
        note = _note([found for found in founds if found.kept.node is node])
        construct = _construct(context, node)
        yield Draft(RULE, node, Action.REWRITE, f"{message}{note}", construct, sites, places=places)
        places = ()


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
    target = _target(found.kept)
    statement = context.module.statement(found.place.call)
    if (
        not found.kept.optimizer
        or target is None
        or not _is_at_hand(context, found.kept.chain[-1], statement, target)
    ):
        return None
    note = _note([found])
    return _enclosed(context, found.place, found.kept.node, target, note)


def _enclosed(
    context: Context, place: _Place, node: ast.expr, optimizer: str, note: str
) -> Draft | None:
    statement = context.module.statement(place.call)
    model = dotted(place.model)
    if not model or isinstance(place.model, ast.Subscript) or not context.stands_alone(statement):
        return None
    name, needs = context.name(RUNTIME, "remap_optimizer", use=place.call)
    manager = Enclose(context.syntax.statement(statement), f"{name}({optimizer}, {model})")
    message = f"remap_optimizer gives it the sharded parameters: fully_shard replaces them{note}"
    return Draft(
        RULE,
        node,
        Action.RUNTIME,
        message,
        _construct(context, node),
        frozenset({place.plan.site}),
        places=(manager,),
        needs=needs,
    )


def _target(kept: Kept) -> str | None:
    """The name that an optimizer is bound to, dotted."""
    statement = kept.chain[-1]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if statement.value is not kept.node:
        return None
    if isinstance(target, ast.Tuple):  # `optimizer, scheduler = build(model)`
        named = [e for e in target.elts if "optim" in dotted(e).lower()]
        target = named[0] if len(named) == 1 else target
    return dotted(target) if isinstance(target, ast.Name | ast.Attribute) else None


def _is_at_hand(context: Context, made: ast.stmt, sharded: ast.stmt, target: str) -> bool:
    """Whether a name holds the optimizer wherever the model is sharded."""
    module = context.module
    block = module.parents[made]
    function = module.enclosing_function(made)
    if module.enclosing_function(sharded) is not function:  # `__init__` and another method
        return block is function and target.startswith("self.")
    if block in module.ancestors(sharded) and _same_branch(block, made, sharded, module):
        return True
    parent = module.parents[block] if isinstance(block, ast.If) else None
    if parent is None or parent not in module.ancestors(sharded) or not isinstance(block, ast.If):
        return False
    return _binds(block.body, target) and _binds(block.orelse, target)


def _same_branch(block: ast.AST, made: ast.stmt, sharded: ast.stmt, module: Module) -> bool:
    """Whether what runs the second of two statements below one has run the first: they are not in opposite branches."""
    inner: ast.AST = sharded
    while module.parents[inner] is not block:
        inner = module.parents[inner]
    return any(
        made in statements and inner in statements
        for statements in (getattr(block, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(statements, list)
    )


def _binds(statements: list[ast.stmt], target: str) -> bool:
    """Whether a block certainly binds a name."""
    return any(
        (isinstance(s, ast.Assign) and any(dotted(t) == target for t in s.targets))
        or (isinstance(s, ast.If) and _binds(s.body, target) and _binds(s.orelse, target))
        for s in statements
    )


def _by_hand(context: Context, found: _Found) -> Draft:
    node = found.kept.node
    sites: frozenset[Site] = frozenset({found.place.plan.site})
    return Draft(RULE, node, Action.MANUAL, _BY_HAND, _construct(context, node), sites, silent=True)


def _construct(context: Context, node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return f"{context.source(node.func)}(...)"
    source = " ".join(context.source(node).split())
    return source if len(source) <= 40 else f"{source[:37]}..."


def _given_optimizers(context: Context) -> Iterator[Draft]:
    """Functions that shard a model and are given its optimizer as well."""
    module = context.module
    for plan in context.plans.values():
        constructor = plan.constructor
        function = module.enclosing_function(constructor.call)
        if constructor.context.module is not module or function is None or not constructor.model:
            continue
        place = _Place(plan, module, constructor.call, constructor.model)
        for name, bindings in module.scopes[function].bindings.items():
            for binding in bindings:
                if isinstance(binding, Parameter) and _is_optimizer(context, module, binding):
                    found = _enclosed(context, place, constructor.call, name, "")
                    if found is not None:
                        yield found


def _is_optimizer(context: Context, module: Module, parameter: Parameter) -> bool:
    """Whether a parameter is an optimizer that has been built: by its annotation, or its name and what is read of it."""
    name, annotation = parameter.argument.arg, parameter.argument.annotation
    if annotation is not None:
        words = ast.unparse(annotation).replace("'", "").replace('"', "")
        kinds = {"Optimizer", "optim.Optimizer", "torch.optim.Optimizer"}
        return bool(
            {word.strip() for word in words.replace("Optional[", "").strip("]").split("|")} & kinds
        )
    if name.rpartition("_")[2] not in _OPTIMIZERS and name not in _OPTIMIZERS:
        return False
    scope = module.scopes[parameter.function]
    if len(scope.bindings[name]) != 1:
        return False
    loads = [n for n in module.loads.get(name, ()) if module.scope_of(n) is scope]
    return bool(loads) and all(_reads_optimizer(module, load) for load in loads)


def _reads_optimizer(module: Module, load: ast.Name) -> bool:
    """Whether an optimizer can stand where a name is read: it is returned, given on, or one of its members is used."""
    parent = module.parents[load]
    if isinstance(parent, ast.Attribute):
        return parent.attr in _MEMBERS
    if isinstance(parent, ast.Call):
        return parent.func is not load
    return isinstance(parent, ast.Return | ast.Tuple | ast.keyword | ast.Assign | ast.Dict)


Command = command(find, __doc__ or "")
