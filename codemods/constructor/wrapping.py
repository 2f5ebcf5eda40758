"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class is a loop over the modules, children before parents. Every other policy looks at the model and is applied
by the runtime, as FSDP1 does.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.plain import Plain, Said, Stays, spent
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Example, Rule, bridged
from fsdp_migrate.facts.program import Definition, External
from fsdp_migrate.facts.values import Value

CLASS_POLICY = Rule(
    "FSDP151",
    "class-policy",
    "a policy that goes by class becomes a loop over the modules",
    """`ModuleWrapPolicy` and `transformer_auto_wrap_policy` make a unit of every module of the named classes, and never of
the root itself. `fully_shard` must be called on children before parents, hence `reversed(list(model.modules()))`. The loop
that the guides show, over `model.modules()` as it is, fails as soon as two of the classes nest.""",
    (
        Example(
            "ModuleWrapPolicy",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block, Net

model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Block, Net

model = Net()
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
        ),
        Example(
            "transformer_auto_wrap_policy, bound to a name",
            """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from model import Decoder, Encoder, T5


def main():
    model = T5()
    policy = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls={Encoder, Decoder},
    )
    model = FSDP(model, auto_wrap_policy=policy)
    train(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Decoder, Encoder, T5


def main():
    model = T5()
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, (Encoder, Decoder)):
            fully_shard(module)
    fully_shard(model)
    train(model)
""",
        ),
    ),
)
RUNTIME_POLICY = Rule(
    "FSDP152",
    "runtime-policy",
    "a policy that looks at the model is applied by the runtime",
    """Size-based policies count parameters as FSDP1 does while it wraps, and policies that come from another function or
file are known only when the program runs. The runtime takes every policy object of FSDP1, torch's own among them, and picks
the very modules that FSDP1 would wrap.""",
    (
        Example(
            "by size",
            """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from model import Net

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
model = FSDP(Net(), auto_wrap_policy=policy)
""",
            """\
import functools

from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP
from fsdp_migrate.runtime.wrap import size_based_auto_wrap_policy

from model import Net

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
model = FSDP(Net(), auto_wrap_policy=policy)
""",
        ),
        bridged(
            "from another function",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), auto_wrap_policy=build_policy(config))
""",
        ),
        Example(
            "a container, which has no forward of its own",
            """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Net

model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
""",
            """\
import torch.nn as nn
from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP
from fsdp_migrate.runtime.wrap import ModuleWrapPolicy

from model import Net

model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
""",
        ),
    ),
)
RULES = (CLASS_POLICY, RUNTIME_POLICY)

# fully_shard refuses containers without a forward; FSDP1 wrapped them, to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, Said("None: the whole model is one unit")
    try:
        _classes(construction, argument.value)
    except Stays as stays:
        return RUNTIME_POLICY, Said(f"the runtime applies it as FSDP1 did: {stays}")
    return CLASS_POLICY, Said("the runtime makes a unit of every module of these classes")


def plain(construction: Construction) -> dict[str, Plain]:
    """The units by class; nothing where there is no policy.

    Raises:
        Stays: if the policy looks at the model, or its classes are not known here.
    """
    value = construction.value("auto_wrap_policy")
    if value is None:
        return {"auto_wrap_policy": Plain("None: the whole model is one unit")}
    context = construction.context
    classes, made = _classes(construction, value)
    statements = spent(context, made)
    if statements is None:
        raise Stays("auto_wrap_policy: the policy is used elsewhere, too")
    return {
        "auto_wrap_policy": Plain(
            "every module of these classes is sharded in a loop, children before parents",
            classes=tuple(context.source(cls) for cls in classes),
            statements=statements,
            removed=(made.node,),
        )
    }


def classes_of(construction: Construction, value: ast.expr) -> list[ast.expr]:
    """The classes that a policy goes by.

    Raises:
        Stays: if it goes by something else.
    """
    return _classes(construction, value)[0]


def _classes(construction: Construction, value: ast.expr) -> tuple[list[ast.expr], Value]:
    """The classes that a policy goes by, and the expression that makes it.

    Raises:
        Stays: if it goes by something else, or a name means something else at the constructor.
    """
    context = construction.context
    made = context.value(value)
    if made is None or not isinstance(made.node, ast.Call):
        raise Stays("auto_wrap_policy is known when the program runs")
    given = _collection(context, made)
    elements = given.elts if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    if not elements:
        raise Stays("auto_wrap_policy looks at the model")
    if made.file is not context.file or not all(_is_unit(context, cls) for cls in elements):
        raise Stays("auto_wrap_policy: its classes are known when the program runs")
    if not all(_same_at(context, cls, construction.call) for cls in elements):
        raise Stays("auto_wrap_policy: its classes have no name at the constructor")
    return list(elements), made


def _collection(context: Context, made: Value) -> ast.expr | None:
    """The classes of `ModuleWrapPolicy({Block})` and of `partial(transformer_auto_wrap_policy, ...)`."""
    call = made.node
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    given: ast.expr | None = None
    if context.program.fsdp1(call.func, made.file) == "ModuleWrapPolicy":
        given = call.args[0] if call.args else keywords.get("module_classes")
    elif "functools.partial" in context.program.dotted(call.func, made.file):
        policy = context.program.fsdp1(call.args[0], made.file) if len(call.args) == 1 else None
        if policy == "transformer_auto_wrap_policy" and len(keywords) == 1:
            given = keywords.get("transformer_layer_cls")
    if isinstance(given, ast.Call) and getattr(given.func, "id", "") in {"set", "tuple", "list"}:
        return given.args[0] if len(given.args) == 1 else None
    return given


def _is_unit(context: Context, expression: ast.expr) -> bool:
    """Whether an expression names a class that can be a unit: one of the program, or an import, no container."""
    meanings = context.program.meanings(expression, context.file)
    if not isinstance(expression, ast.Name | ast.Attribute) or len(meanings) != 1:
        return False
    meaning = meanings[0]
    above = [meaning]
    if isinstance(meaning, Definition):
        if not isinstance(meaning.node, ast.ClassDef):
            return False
        above += context.program.classes_above(meaning)
    elif not isinstance(meaning, External):
        return False
    outside = {each.dotted.rpartition(".")[2] for each in above if isinstance(each, External)}
    return not outside & _CONTAINERS and meaning != External("torch.nn.Module")


def _same_at(context: Context, expression: ast.expr, place: ast.AST) -> bool:
    """Whether the name of a class means the same at another place of the file."""
    root = expression
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    there = context.file.scope_of(root).lookup(root.id)
    here = context.file.scope_of(place).lookup(root.id)
    return there is not None and here is not None and there[0] is here[0] and len(here[1]) == 1
