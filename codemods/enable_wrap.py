"""`enable_wrap(wrapper_cls=FSDP, ...)` and `wrap(module)`: parts of a model that wrap themselves where they are built."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.indirect import of_call, renamed, sites_of, unknown_keywords
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Need, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Imported, Module
from fsdp_migrate.index.names import fsdp1_name
from fsdp_migrate.index.project import Definition, External, Meaning, Project

_HEADER = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n\n"
)

RULE = Rule(
    "FSDP153",
    "enable-wrap",
    "enable_wrap and wrap come from the runtime, and wrap by shard_model",
    """`wrap(m)` inside `enable_wrap(wrapper_cls=FSDP, ...)` is `FSDP(m, ...)`, and nothing outside of it. The runtime has both
with the same meaning; the class becomes `shard_model`, and the options stay as they are. What `wrap` returns is a model like
all others.

`wrap(wrap(m))` made two units under FSDP1, of which the outer held no parameters and changed nothing; the runtime makes one.

A program in which `enable_wrap` is given another class stays as it is. Where it is given several classes, or one that is not
in sight, it depends on the moment what `wrap` does: that is left to be done by hand.""",
    (
        Example(
            "a context",
            f"""\
{_HEADER}with enable_wrap(wrapper_cls=FSDP, **options):
    for i, layer in enumerate(model.layers):
        model.layers[i] = wrap(wrap(layer))
    model = wrap(model)
with model.no_sync():
    train(model)
""",
            """\
from fsdp_migrate.runtime import enable_wrap, no_sync, shard_model, wrap

with enable_wrap(wrapper_cls=shard_model, **options):
    for i, layer in enumerate(model.layers):
        model.layers[i] = wrap(wrap(layer))
    model = wrap(model)
with no_sync(model):
    train(model)
""",
        ),
        Example(
            "a module that wraps its parts",
            f"""\
{_HEADER}class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = wrap(nn.Linear(8, 8), cpu_offload=None)


with enable_wrap(wrapper_cls=FSDP, fsdp_auto_wrap_policy=None):
    model = wrap(Net())
""",
            """\
from fsdp_migrate.runtime import enable_wrap, shard_model, wrap

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = wrap(nn.Linear(8, 8), cpu_offload=None)


with enable_wrap(wrapper_cls=shard_model, auto_wrap_policy=None):
    model = wrap(Net())
""",
        ),
        Example(
            "another class",
            """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=checkpoint_wrapper):
    layer = wrap(layer)
""",
            message="wraps by another class",
        ),
        Example(
            "several classes",
            f"""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
{_HEADER}with enable_wrap(wrapper_cls=FSDP):
    layer = wrap(layer)
with enable_wrap(wrapper_cls=checkpoint_wrapper):
    layer = wrap(layer)
""",
            message="several classes",
        ),
        Example(
            "a class that is not in sight",
            """\
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(**options):
    layer = wrap(layer)
""",
            message="not in sight",
        ),
        Example(
            "fairscale's",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP, enable_wrap, wrap

with enable_wrap(wrapper_cls=FSDP):
    layer = wrap(layer)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_NAMES = frozenset({"enable_wrap", "wrap"})
_CLASS = "FullyShardedDataParallel"


def find(context: Context) -> Iterator[Draft]:
    """References to `enable_wrap` and `wrap`, and the models that `wrap` makes."""
    references = [r for r in context.references() if context.fsdp1(r) in _NAMES]
    if not references:
        return
    why, silent = _why_not(context.project, context.module)
    for reference in references:
        name = context.fsdp1(reference)
        assert name is not None
        call = context.module.parents[reference]
        called = call if isinstance(call, ast.Call) and call.func is reference else None
        problem = why or _problem(context, reference, called)
        if problem:
            sites = _all_sites(context)
            held = silent or not why
            yield Draft(RULE, reference, Action.MANUAL, problem, name, sites, silent=held)
            continue
        assert isinstance(call, ast.Call)
        if call in context.plans:
            yield of_call(context, context.plans[call], RULE, "wrap")
        edits, needs, gone = _moved(context, reference, name)
        if call in context.plans and not edits:
            continue  # the call has been spoken of
        message = f"{name} comes from {RUNTIME}, where it means the same"
        sites = _all_sites(context)
        yield Draft(
            RULE,
            reference,
            Action.RUNTIME,
            message,
            name,
            sites,
            edits=(*edits, *(renamed(context, call) if name == "enable_wrap" else ())),
            needs=needs,
            gone=gone,
        )
        if name == "enable_wrap":
            yield from _wrapper(context, call, sites)


def moves(project: Project, module: Module, name: str) -> bool:
    """Whether the import of `enable_wrap` or `wrap` in a file comes from the runtime once its models are migrated."""
    return name in _NAMES and not _why_not(project, module)[0]


def _why_not(project: Project, module: Module) -> tuple[str, bool]:
    """Why the files around one keep torch's functions, and whether models are made that nobody follows."""
    classes = set(_classes(project, module))
    if classes == {_CLASS}:
        return "", False
    if classes == {"another"}:
        return "stays: it wraps by another class than FSDP1's", False
    if classes == {_CLASS, "another"}:
        return "wraps by several classes: give each its own function in place of wrap", True
    return (
        "the class that it wraps by is not in sight: name it in enable_wrap(wrapper_cls=...)",
        True,
    )


def _classes(project: Project, module: Module) -> Iterator[str]:
    """What `enable_wrap` is given in the files that hang together with one."""
    for where in project.connected(module):
        if "enable_wrap" not in where.text:
            continue
        for call in where.calls:
            if project.fsdp1(call.func, where) == "enable_wrap":
                given = [k.value for k in call.keywords if k.arg == "wrapper_cls"]
                yield _class(project, given[0], where) if given else "unknown"


def _class(project: Project, expression: ast.expr, module: Module) -> str:
    if project.fsdp1(expression, module) == _CLASS:
        return _CLASS
    meanings = project.meanings(expression, module)
    other = bool(meanings) and all(_is_other(project, meaning) for meaning in meanings)
    return "another" if other else "unknown"


def _is_other(project: Project, made: Meaning) -> bool:
    """Whether a class has nothing of FSDP1's in it; a function of the project may do anything."""
    if isinstance(made, External):
        return fsdp1_name(made.dotted) is None
    return (
        isinstance(made, Definition)
        and isinstance(made.node, ast.ClassDef)
        and not any(
            isinstance(base, External) and fsdp1_name(base.dotted) for base in project.bases(made)
        )
    )


def _problem(context: Context, reference: ast.expr, call: ast.Call | None) -> str:
    """Why one reference cannot come from the runtime."""
    if call is None:
        return "is passed on as a value: call it where the module is built"
    if context.fsdp1(reference) == "enable_wrap":
        unknown = [name for name in unknown_keywords(call) if name != "wrapper_cls"]
        if unknown:
            return f"`{unknown[0]}` is no argument of FSDP1"
    if isinstance(reference, ast.Name):
        found = context.module.lookup(reference.id, context.module.scope_of(reference))
        if found is None or not all(isinstance(binding, Imported) for binding in found[1]):
            return "is not imported by name: import it from torch.distributed.fsdp.wrap"
    return ""


def _moved(
    context: Context, reference: ast.expr, name: str
) -> tuple[tuple[Edit, ...], tuple[Need, ...], tuple[ast.AST, ...]]:
    """A name keeps its spelling, and its import moves; `torch.distributed.fsdp.wrap.wrap` becomes a name."""
    if isinstance(reference, ast.Name):
        return (), (), ()
    local, needs = context.name(RUNTIME, name, reference)
    return (context.rename(reference, local),), needs, (reference,)


def _wrapper(context: Context, call: ast.Call, sites: frozenset[Site]) -> Iterator[Draft]:
    value = next(k.value for k in call.keywords if k.arg == "wrapper_cls")
    name, needs = context.name(RUNTIME, "shard_model", value)
    yield Draft(
        RULE,
        value,
        Action.RUNTIME,
        "wraps by shard_model, which takes FSDP1's options",
        f"wrapper_cls={context.source(value)}",
        sites,
        edits=(context.rename(value, name),),
        needs=needs,
        gone=(value,),
    )


def _all_sites(context: Context) -> frozenset[Site]:
    """The models that `wrap` makes in the files around."""
    around = context.project.connected(context.module)
    return frozenset(
        site
        for maker in context.models.makers
        if maker.partial is None and maker.module in around
        for site in sites_of(context, maker)
    )


Command = command(find, __doc__ or "")
