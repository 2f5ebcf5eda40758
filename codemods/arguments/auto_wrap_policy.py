"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class becomes a loop over the modules, children before parents. The other policies decide by looking at the
model, so they go to the runtime, which applies them as FSDP1 does.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.module import Defined, Imported
from fsdp_migrate.index.project import Definition
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
    ),
)
RULES = (CLASS_POLICY, RUNTIME_POLICY)

# Containers without a forward: fully_shard refuses them, FSDP1 wrapped them to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


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
    condition = _condition(constructor, made)
    if condition is None or not _visible(constructor, made):
        return Translation(RUNTIME_POLICY, "the policy looks at the model when the program runs")
    if not _root_is_another(constructor, made):
        root = constructor.context.source(constructor.model) if constructor.model else ""
        condition = f"{{module}} is not {root} and {condition}"
    spent = tuple(made.names) if all(map(constructor.context.is_only_use, made.names)) else ()
    gone = (made.node,) if made.node is not None and (spent or not made.names) else ()
    return Translation(
        CLASS_POLICY,
        "every module of these classes is sharded in a loop, children before parents",
        Plain(condition=condition, spent=spent, gone=gone),
    )


def _condition(constructor: Constructor, made: Origin) -> str | None:
    """The test of a module that the policy stands for, with `{module}` for the module; None if it is no test of class."""
    if not isinstance(made.node, ast.Call):
        return None
    name = constructor.context.project.fsdp1(made.node.func, made.module)
    if name == "ModuleWrapPolicy":
        return _isinstance(constructor, made, _argument(made.node, 0, "module_classes"))
    dotted = constructor.context.project.dotted(made.node.func, made.module)
    if dotted != {"functools.partial"} or len(made.node.args) != 1:
        return None
    policy = constructor.context.project.fsdp1(made.node.args[0], made.module)
    if policy == "transformer_auto_wrap_policy" and len(made.node.keywords) == 1:
        return _isinstance(constructor, made, _argument(made.node, None, "transformer_layer_cls"))
    if policy == "lambda_auto_wrap_policy" and len(made.node.keywords) == 1:
        return _of_lambda(constructor, made, _argument(made.node, None, "lambda_fn"))
    return None


def _argument(call: ast.Call, position: int | None, keyword: str) -> ast.expr | None:
    if position is not None and position < len(call.args):
        return call.args[position]
    return next((k.value for k in call.keywords if k.arg == keyword), None)


def _isinstance(constructor: Constructor, made: Origin, given: ast.expr | None) -> str | None:
    if given is None:
        return None
    inner = given
    if (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Name)
        and inner.func.id in {"set", "tuple", "list", "frozenset"}
        and len(inner.args) == 1
    ):
        inner = inner.args[0]
    if isinstance(inner, ast.Set | ast.List | ast.Tuple):
        elements = [ast.unparse(element) for element in inner.elts]
        if not elements or any(isinstance(element, ast.Starred) for element in inner.elts):
            return None
        if any(element.rpartition(".")[2] in _CONTAINERS for element in elements):
            return None
        classes = elements[0] if len(elements) == 1 else f"({', '.join(elements)})"
        return f"isinstance({{module}}, {classes})"
    return None


def _of_lambda(constructor: Constructor, made: Origin, given: ast.expr | None) -> str | None:
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
        and isinstance(body.args[1], ast.Tuple | ast.Name | ast.Attribute)
    ):
        return None
    classes = ast.unparse(body.args[1])
    if any(container in classes for container in _CONTAINERS):
        return None
    return f"isinstance({{module}}, {classes})"


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


def _root_is_another(constructor: Constructor, made: Origin) -> bool:
    """Whether the root is known to be of none of the policy's classes, so that the loop need not skip it."""
    roots = constructor.classes
    assert made.node is not None
    wanted: set[Definition] = set()
    for node in ast.walk(made.node):
        if isinstance(node, ast.Name | ast.Attribute):
            found = constructor.context.project.definition(node, made.module)
            if found is not None and isinstance(found.node, ast.ClassDef):
                wanted.add(found)
    if not roots or None in roots:
        return False
    for root in roots:
        assert root is not None
        above = set(constructor.context.project.bases(root))
        if root in wanted or above & wanted:
            return False
    return True
