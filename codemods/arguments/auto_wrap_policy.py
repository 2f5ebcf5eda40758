"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class becomes a loop over the modules, children before parents. The other policies decide by looking at the
model, so they go to the runtime, which applies them as FSDP1 does.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor_call import Constructor, is_argument
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.plan import Plain, Translation, Units
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.module import Assigned, Defined, Imported
from fsdp_migrate.index.project import Definition, External, Meaning, Project
from fsdp_migrate.index.values import Origin

CLASS_POLICY = Rule(
    "FSDP151",
    "class-policy",
    "a policy that goes by class becomes a loop over the modules",
    """`ModuleWrapPolicy`, `transformer_auto_wrap_policy` and a `lambda_auto_wrap_policy` that tests the class make a unit
of every module of the named classes, and never of the root by itself. `fully_shard` must see children before parents, hence
`reversed(list(model.modules()))`. The loop that the guides show, over `model.modules()` as it stands, fails as soon as two of
the classes nest.""",
    (
        Example(
            "ModuleWrapPolicy",
            """\
from model import Block
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
            """\
from model import Block
from torch.distributed.fsdp import fully_shard

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

from model import Decoder, Encoder, T5
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def build():
    model = T5()
    policy = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls={Encoder, Decoder},
    )
    return FSDP(model, auto_wrap_policy=policy)
""",
            """\
from model import Decoder, Encoder, T5
from torch.distributed.fsdp import fully_shard


def build():
    model = T5()
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, (Encoder, Decoder)):
            fully_shard(module)
    return fully_shard(model)
""",
        ),
        Example(
            "a test of the class",
            """\
import functools

from model import Block
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

model = FSDP(
    model,
    auto_wrap_policy=functools.partial(
        lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block)
    ),
)
""",
            """\
from model import Block
from torch.distributed.fsdp import fully_shard

for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
        ),
        Example(
            "None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, auto_wrap_policy=None)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
RUNTIME_POLICY = Rule(
    "FSDP152",
    "runtime-policy",
    "a policy that looks at the model is applied by the runtime",
    """Size-based policies count parameters as FSDP1 does while it wraps, and policies that come from another function or
file are known only when the program runs. `shard_model` takes every policy object of FSDP1, torch's own among them, and picks
the very modules that FSDP1 would wrap.""",
    (
        Example(
            "by size",
            """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
model = FSDP(model, auto_wrap_policy=policy)
""",
            """\
import functools

from fsdp_migrate.runtime import shard_model, size_based_auto_wrap_policy

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
model = shard_model(model, auto_wrap_policy=policy)
""",
        ),
        Example(
            "from another function",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, auto_wrap_policy=build_policy(config))
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, auto_wrap_policy=build_policy(config))
""",
        ),
        Example(
            "units with arguments of their own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy


def decide(module):
    if isinstance(module, Experts):
        return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    return isinstance(module, Block)


model = FSDP(model, auto_wrap_policy=CustomPolicy(decide))
""",
            """\
from fsdp_migrate.runtime import CustomPolicy, ShardingStrategy, shard_model


def decide(module):
    if isinstance(module, Experts):
        return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    return isinstance(module, Block)


model = shard_model(model, auto_wrap_policy=CustomPolicy(decide))
""",
        ),
        Example(
            "one policy or the other",
            """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

is_trained = functools.partial(
    lambda_auto_wrap_policy,
    lambda_fn=lambda m: getattr(m, "weight", None) is not None and m.weight.requires_grad,
)
is_layer = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
model = FSDP(
    model, auto_wrap_policy=functools.partial(_or_policy, policies=[is_trained, is_layer])
)
""",
            """\
import functools

from fsdp_migrate.runtime import (
    _or_policy,
    lambda_auto_wrap_policy,
    shard_model,
    transformer_auto_wrap_policy,
)

is_trained = functools.partial(
    lambda_auto_wrap_policy,
    lambda_fn=lambda m: getattr(m, "weight", None) is not None and m.weight.requires_grad,
)
is_layer = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
model = shard_model(
    model, auto_wrap_policy=functools.partial(_or_policy, policies=[is_trained, is_layer])
)
""",
        ),
        Example(
            "everything, and a policy of one's own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import always_wrap_policy


def is_unit(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 1000


encoder = FSDP(encoder, auto_wrap_policy=always_wrap_policy)
decoder = FSDP(decoder, auto_wrap_policy=is_unit)
""",
            """\
from fsdp_migrate.runtime import always_wrap_policy, shard_model


def is_unit(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 1000


encoder = shard_model(encoder, auto_wrap_policy=always_wrap_policy)
decoder = shard_model(decoder, auto_wrap_policy=is_unit)
""",
        ),
        Example(
            "a container, which has no forward",
            """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
""",
            """\
import torch.nn as nn
from fsdp_migrate.runtime import ModuleWrapPolicy, shard_model

model = shard_model(model, auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
""",
        ),
        Example(
            "a container of one's own",
            """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Layers(nn.ModuleList):
    pass


model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Layers}))
""",
            """\
import torch.nn as nn
from fsdp_migrate.runtime import ModuleWrapPolicy, shard_model


class Layers(nn.ModuleList):
    pass


model = shard_model(model, auto_wrap_policy=ModuleWrapPolicy({Layers}))
""",
        ),
        Example(
            "classes that are known when the program runs",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({type(model.layers[0])}))
""",
            """\
from fsdp_migrate.runtime import ModuleWrapPolicy, shard_model

model = shard_model(model, auto_wrap_policy=ModuleWrapPolicy({type(model.layers[0])}))
""",
        ),
        Example(
            "the spelling of torch 1.11",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import default_auto_wrap_policy

model = FSDP(model, fsdp_auto_wrap_policy=default_auto_wrap_policy)
""",
            """\
from fsdp_migrate.runtime import default_auto_wrap_policy, shard_model

model = shard_model(model, auto_wrap_policy=default_auto_wrap_policy)
""",
        ),
    ),
)
RULES = (CLASS_POLICY, RUNTIME_POLICY)

# Containers without a forward: fully_shard refuses them, FSDP1 wrapped them to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
_MODULE = {External("torch.nn.Module"), External("torch.nn.modules.module.Module")}


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `auto_wrap_policy`."""
    value = constructor.value("auto_wrap_policy")
    if value is None:
        return None
    if constructor.is_none("auto_wrap_policy"):
        message = "None: the whole model is one unit"
        return Translation(CLASS_POLICY, message, Plain(), in_runtime=False)
    made = constructor.origin(value)
    if made is None:
        return Translation(RUNTIME_POLICY, "the policy is known only when the program runs")
    classes = _classes(constructor, made)
    if classes is None or not _visible(constructor, made):
        return Translation(RUNTIME_POLICY, "the policy looks at the model when the program runs")
    if not all(_only_for_constructors(constructor, name) for name in made.names):
        return Translation(
            RUNTIME_POLICY, "the policy is read elsewhere as well, where it may be changed"
        )
    if not _has_room(constructor):
        return Translation(RUNTIME_POLICY, "no loop can stand here without touching other names")
    spent = tuple(made.names) if all(_can_go(constructor, name) for name in made.names) else ()
    gone = (made.node,) if made.node is not None and (spent or not made.names) else ()
    source = ", ".join(ast.unparse(cls) for cls in classes)
    units = Units(
        classes=source if len(classes) == 1 else f"({source})",
        may_hold_root=not _root_is_another(constructor, classes),
    )
    return Translation(
        CLASS_POLICY,
        "every module of these classes is sharded in a loop, children before parents",
        Plain(units=units, spent=spent, gone=gone),
    )


def _only_for_constructors(constructor: Constructor, name: Assigned) -> bool:
    """Whether nobody but FSDP1's constructors reads a policy: it can be changed by whoever holds it."""
    context = constructor.context
    if not isinstance(name.target, ast.Name) or context.is_read_elsewhere(name):
        return False
    return all(
        is_argument(context, load) or _is_renamed(constructor, load)
        for load in context.readers(name)
    )


def _is_renamed(constructor: Constructor, load: ast.Name) -> bool:
    """Whether a name is read by the assignment that the policy takes on its way to the constructor."""
    value = constructor.value("auto_wrap_policy")
    made = constructor.origin(value) if value is not None else None
    return made is not None and any(load is name.value for name in made.names)


def _can_go(constructor: Constructor, name: Assigned) -> bool:
    """Whether the statement that binds the policy has no other use, and takes nothing along with it."""
    context = constructor.context
    return context.is_only_use(name) and context.stands_alone(context.module.statement(name.target))


def _has_room(constructor: Constructor) -> bool:
    """Whether a loop can stand at the constructor: its builtins are the builtins, and its variable is nobody's attribute."""
    context, call = constructor.context, constructor.call
    return not isinstance(context.module.scope_of(call).node, ast.ClassDef) and all(
        context.means_builtin(name, call) for name in ("reversed", "list", "isinstance", "dict")
    )


def _classes(constructor: Constructor, made: Origin) -> list[ast.expr] | None:
    """The classes that make a module a unit; None if the policy goes by something else."""
    if not isinstance(made.node, ast.Call):
        return None
    name = constructor.context.project.fsdp1(made.node.func, made.module)
    if name == "ModuleWrapPolicy":
        return _of_collection(constructor, made, given_for(made.node, "module_classes", 0))
    dotted = constructor.context.project.dotted(made.node.func, made.module)
    if dotted != {"functools.partial"} or len(made.node.args) != 1:
        return None
    policy = constructor.context.project.fsdp1(made.node.args[0], made.module)
    if policy == "transformer_auto_wrap_policy" and len(made.node.keywords) == 1:
        return _of_collection(constructor, made, given_for(made.node, "transformer_layer_cls"))
    if policy == "lambda_auto_wrap_policy" and len(made.node.keywords) == 1:
        return _of_lambda(constructor, made, given_for(made.node, "lambda_fn"))
    return None


def _of_collection(
    constructor: Constructor, made: Origin, given: ast.expr | None
) -> list[ast.expr] | None:
    """`{Block, Norm}` or `set([Block, Norm])`: its elements, if they are classes."""
    inner = given
    if (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Name)
        and inner.func.id in {"set", "tuple", "list", "frozenset"}
        and len(inner.args) == 1
    ):
        inner = inner.args[0]
    if isinstance(inner, ast.Set | ast.List | ast.Tuple):
        return _if_classes(constructor, made, inner.elts)
    return None


def _of_lambda(
    constructor: Constructor, made: Origin, given: ast.expr | None
) -> list[ast.expr] | None:
    """`lambda m: isinstance(m, Block)`: the test itself, if it tests the class and nothing else."""
    if not isinstance(given, ast.Lambda) or len(given.args.args) != 1:
        return None
    body = given.body
    if not (
        isinstance(body, ast.Call)
        and isinstance(body.func, ast.Name)
        and body.func.id == "isinstance"
        and len(body.args) == 2
        and isinstance(body.args[0], ast.Name)
        and body.args[0].id == given.args.args[0].arg
    ):
        return None
    classes = body.args[1]
    elements = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    return _if_classes(constructor, made, elements)


def _if_classes(
    constructor: Constructor, made: Origin, elements: list[ast.expr]
) -> list[ast.expr] | None:
    """The expressions, if each names one class: the loop looks at them once for every module, a policy once for all."""
    for element in elements:
        meanings = constructor.context.project.meanings(element, made.module)
        if not isinstance(element, ast.Name | ast.Attribute) or not meanings:
            return None
        if not all(_are_units(constructor.context.project, meaning) for meaning in meanings):
            return None
    return elements or None


def _are_units(project: Project, meaning: Meaning) -> bool:
    """Whether something is a class whose modules `fully_shard` takes, no container; an import is taken for one."""
    if isinstance(meaning, External):
        return meaning not in _MODULE and meaning.dotted.rpartition(".")[2] not in _CONTAINERS
    if not isinstance(meaning, Definition) or not isinstance(meaning.node, ast.ClassDef):
        return False
    above = (base for base in project.bases(meaning) if isinstance(base, External))
    return all(base.dotted.rpartition(".")[2] not in _CONTAINERS for base in above)


def _visible(constructor: Constructor, made: Origin) -> bool:
    """Whether the names in the policy mean the same at the constructor: same file, and bound once or by import."""
    context = constructor.context
    if made.module is not context.module or made.node is None:
        return False
    here = context.module.scope_of(constructor.call)
    for node in ast.walk(made.node):
        if not isinstance(node, ast.Name):
            continue
        there = context.module.lookup(node.id, context.module.scope_of(node))
        if there is not None and isinstance(there[0].node, ast.Lambda):
            continue  # the lambda's own parameter
        seen = context.module.lookup(node.id, here)
        if there is None or seen is None:
            if there is not seen:
                return False
        elif there[0] is not seen[0] or (
            len(seen[1]) > 1 and not all(isinstance(b, Imported | Defined) for b in seen[1])
        ):
            return False
    return True


def _root_is_another(constructor: Constructor, classes: list[ast.expr]) -> bool:
    """Whether the root is known to be of none of the policy's classes, so that the loop need not skip it."""
    project, module = constructor.context.project, constructor.context.module
    wanted = {meaning for cls in classes for meaning in project.meanings(cls, module)}
    roots = constructor.classes
    if not roots or wanted & _MODULE:
        return False
    return all(root is not None and _is_none_of(project, root, wanted) for root in roots)


def _is_none_of(project: Project, root: Definition, wanted: set[Meaning]) -> bool:
    """Whether a class is certainly none of the classes wanted, and below none of them."""
    above = {root}
    for meaning in project.bases(root):
        if meaning in wanted:
            return False
        if isinstance(meaning, Definition):
            above.add(meaning)
        elif meaning not in _MODULE:
            return False  # a class whose own bases are out of sight
    known = all(project.meanings(base, cls.module) for cls in above for base in _written(cls))
    return root not in wanted and known


def _written(cls: Definition) -> list[ast.expr]:
    return cls.node.bases if isinstance(cls.node, ast.ClassDef) else []
