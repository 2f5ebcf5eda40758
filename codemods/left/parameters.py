"""What a program computes from sharded parameters and gradients as tensors: counts, shapes, norms.

Between forwards FSDP1's parameters were this rank's shards, plain tensors of one dimension. FSDP2's are DTensors of the whole
shape. Which of the two a program means is for a person to say: `local_shard` of the runtime gives the shard.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from fsdp_migrate.codemods.constructor.options import given_keys
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.left.measured import is_measured, measuring, reduces_over_ranks
from fsdp_migrate.codemods.left.taken import (
    PARTS,
    holds,
    is_for_other_models,
    is_known_as_whole,
    taken,
)
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP507",
    "local-tensor-ops",
    "counts, shapes and norms describe whole parameters; local_shard gives this rank's part",
)
RULES = (RULE,)

_COUNT = "a DTensor counts the whole parameter, on every rank: local_shard(p) of the runtime is this rank's share"
_SHAPE = "now the whole parameter's shape decides, and FSDP1's shards had one dimension: training changes"
_NAME = "names now decide, under FSDP1 a unit's parameters were one, called _flat_param: training changes"
_NORM = "now of whole parameters, under FSDP1 of this rank's shards: use local_shard(p) of the runtime to keep those"
_FAILS = (
    "fails on a DTensor: p.to_local() is this rank's shard, p.full_tensor() the whole parameter"
)
_ADDRESS = "data_ptr() of a DTensor is 0: call it on p.to_local()"
_VECTOR = "now gives a DTensor of the whole vector, where FSDP1 gave this rank's shards: use p.to_local() or p.full_tensor()"

_GROUPING = re.compile(r"optim|param|group|decay")
_ORIGINAL = re.compile(r"use_orig_params\b(?![\"']?\s*[:=]\s*False)")
# A function of such a name may come from any file; one of another name from a file with such words.
_LIKELY = re.compile(r"optim|param|group|decay|[Nn]orm|[Gg]rad|[Cc]lip")
_ASKS = re.compile(rb"\.(?:norm|sum|mean|max|min|n?dim|numel|named_parameters)\b|all_reduce")
_DEFINED = re.compile(rb"^([ \t]*)(?:async )?(?:def|class) (\w+)", re.ASCII | re.MULTILINE)
_DIMENSIONS = re.compile(rb"\.n?dim\b")
_TESTS = frozenset({"endswith", "find", "fullmatch", "match", "search", "startswith"})
_FAILING = {
    "data_ptr": _ADDRESS,
    "numpy": _FAILS,
    "storage": _FAILS,
    "tolist": _FAILS,
    "untyped_storage": _FAILS,
}


def find(context: Context) -> Iterator[Found]:
    """Uses of sharded parameters as tensors."""
    yield from _here(context)
    for call, message in _elsewhere(context):
        yield Found(RULE, call, Action.MANUAL, message)


def _here(context: Context) -> Iterator[Found]:
    """Those in the file itself."""
    for attribute in _used(context, reduces_over_ranks, "numel", "nelement"):
        yield Found(RULE, attribute, Action.MANUAL, _COUNT)
    for attribute in _used(context, lambda c, node: _decides(c.file, node), "ndim", "dim"):
        yield Found(RULE, attribute, Action.MANUAL, _SHAPE)
    for call in _tested_by_name(context):
        yield Found(RULE, call, Action.MANUAL, _NAME)
    for attribute in _used(context, _is_called, *_FAILING):
        yield Found(RULE, attribute, Action.MANUAL, _FAILING[attribute.attr])
    for node in (*_measured(context), *_asked_for_none(context)):
        if _is_sharded(context, node):
            yield Found(RULE, node, Action.MANUAL, _NORM, shortened(_use(context, node)))
    yield from _vectors(context)


def _vectors(context: Context) -> Iterator[Found]:
    """Sharded parameters that are joined into one vector."""
    for call in context.file.of(ast.Call):
        if last_name(call.func) == "parameters_to_vector" and call.args:
            if taken(context).are_parameters(call.args[0], context.file):
                yield Found(RULE, call, Action.MANUAL, _VECTOR)


def _tested_by_name(context: Context) -> Iterator[ast.Call]:
    """The calls of `named_parameters` on a model whose parameters were flat, in loops that test the names."""
    file = context.file
    for call in _name_tests(file):
        if taken(context).are_parameters(call, file, (1,)) and _were_flat(context):
            if not (is_known_as_whole(file, call) or is_for_other_models(context, call)):
                yield call


def _name_tests(file: File) -> Iterator[ast.Call]:
    """The calls of `named_parameters` in loops that test the names."""
    for attribute in file.attributes.get("named_parameters", ()):
        call = file.parents[attribute]
        loop = next(
            (a for a in file.ancestors(call) if isinstance(a, ast.For | ast.comprehension)), None
        )
        if loop is None or not isinstance(call, ast.Call) or not isinstance(loop.target, ast.Tuple):
            continue
        region = loop if isinstance(loop, ast.For) else file.parents[loop]
        name = getattr(loop.target.elts[0], "id", "")
        names = (n for n in ast.walk(region) if isinstance(n, ast.Name) and n.id == name)
        if any(_is_tested(file, each) for each in names):
            yield call


def _is_tested(file: File, name: ast.AST) -> bool:
    """`"bias" in name`, `name.endswith("bias")`, `re.search("bias", name)`."""
    around = file.parents[name]
    if isinstance(around, ast.Call):
        return getattr(around.func, "attr", "") in _TESTS
    return isinstance(around, ast.Compare) or getattr(around, "attr", "") in _TESTS


@lru_cache(maxsize=1)  # of this file only
def _were_flat(context: Context) -> bool:
    """Whether the program says nothing but `use_orig_params=False`, the default, wherever it makes units."""
    files = context.program.files
    if any(_ORIGINAL.search(file.text) for file in files):
        return False
    calls = [(call, file) for file in files for call in context.models.constructors(file)]
    return bool(calls) and all(
        keyword.arg or (file is context.file and given_keys(context, keyword.value))
        for call, file in calls
        for keyword in call.keywords
    )


def _used(
    context: Context, asked: Callable[[Context, ast.Attribute], bool], *names: str
) -> Iterator[ast.Attribute]:
    """The uses of some attributes on sharded parameters that satisfy `asked`."""
    for name in names:
        for attribute in context.file.attributes.get(name, ()):
            if asked(context, attribute) and _is_sharded(context, attribute.value):
                yield attribute


def _is_sharded(context: Context, node: ast.expr) -> bool:
    return taken(context).is_parameter(node, context.file) and not (
        is_known_as_whole(context.file, node) or is_for_other_models(context, node)
    )


def _elsewhere(context: Context) -> Iterator[tuple[ast.Call, str]]:
    """The calls of functions of files without FSDP in them, with what these do."""
    for call in _grouped_elsewhere(context):
        yield call, f"in {last_name(call.func)}: {_SHAPE}"
    yield from _called_elsewhere(context)


def _grouped_elsewhere(context: Context) -> Iterator[ast.Call]:
    """The calls of a model's own method, of a file without FSDP in it, that parts parameters by their dimensions."""
    asking = [path for path in _imported(context) if _DIMENSIONS.search(context.program.data(path))]
    for method in filter(_GROUPING.search, context.file.attributes) if asking else ():
        if any(_parts_by_dimensions(context, path, method) for path in asking):
            for attribute in context.file.attributes[method]:
                call = context.file.parents[attribute]
                if isinstance(call, ast.Call) and call.func is attribute:
                    if holds(context.models, attribute.value, context.file):
                        yield call


def _parts_by_dimensions(context: Context, path: str, method: str) -> bool:
    """Whether a file has a method of that name that decides by dimensions."""
    text = context.program.data(path)
    file = context.program.load(path) if f"def {method}".encode() in text else None
    return file is not None and any(
        getattr(file.function(attribute), "name", "") == method and _decides(file, attribute)
        for name in ("ndim", "dim")
        for attribute in file.attributes.get(name, ())
    )


def _called_elsewhere(context: Context) -> Iterator[tuple[ast.Call, str]]:
    """The calls that give a model, or its parameters, to code of a file without FSDP in it, with what this does."""
    program, known = context.program, dict[File, list[Found]]()
    asking = {name for path in _imported(context) for name in _asking(program.data(path))}
    for call in context.file.of(ast.Call):
        name = last_name(call.func)
        if not (name in asking or _LIKELY.search(name)) or not _is_imported(context, call):
            continue
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        models = any(holds(context.models, value, context.file) for value in values)
        if not models and not any(
            taken(context).are_parameters(value, context.file) for value in values
        ):
            continue
        made = program.definition(call.func, context.file)
        if made is None or made.file in program.files:
            continue
        if isinstance(made.node, ast.ClassDef):
            nodes = (made.file.attributes.get(each, ()) for each in ("norm", "mean", "sum"))
            if not models and any(
                made.file.enclosing_class(node) is made.node for each in nodes for node in each
            ):
                yield call, f"{name} takes norms or means: {_NORM}"
            continue
        if made.file not in known:
            known[made.file] = list(_here(Context(made.file, program, context.models)))
        inside = (f for f in known[made.file] if made.node in made.file.ancestors(f.node))
        for found in islice(inside, 1):
            what = found.construct or shortened(made.file.source(found.node))
            yield call, f"in {name}, {what}: {found.message}"


@lru_cache(maxsize=256)  # a file may be imported by many
def _asking(text: bytes) -> frozenset[str]:
    """The functions and classes of a file whose text asks tensors what sharded ones answer otherwise."""
    found = list(_DEFINED.finditer(text)) if _ASKS.search(text) else []
    names = set()
    for number, each in enumerate(found):
        behind = (m.start() for m in found[number + 1 :] if len(m[1]) <= len(each[1]))
        if _ASKS.search(text, each.end(), next(behind, len(text))):
            names.add(each[2].decode())
    return frozenset(names)


def _is_imported(context: Context, call: ast.Call) -> bool:
    """Whether a call is of something that comes from a file of the program without FSDP in it."""
    program, file, root = context.program, context.file, call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return any(
        (path := program.locate(module, file.folder)) is not None and not program.mentions(path)
        for binding in file.bindings(root)
        if isinstance(binding, Imported)
        for module in (binding.module, f"{binding.module}.{binding.member}")
    )


def _imported(context: Context) -> list[str]:
    """The files that a file imports names from, but for those that are analysed themselves."""
    program, file = context.program, context.file
    modules = {
        binding.module
        for bindings in file.scope.bindings.values()
        for binding in bindings
        if isinstance(binding, Imported)
    }
    paths = {program.locate(module, file.folder) for module in modules}
    return sorted(path for path in paths if path is not None and not program.mentions(path))


def _is_called(context: Context, attribute: ast.Attribute) -> bool:
    call = context.file.parents[attribute]
    return isinstance(call, ast.Call) and call.func is attribute


def _decides(file: File, attribute: ast.Attribute) -> bool:
    """`p.ndim >= 2`, `p.dim() < 2`."""
    parent = file.parents[attribute]
    called = isinstance(parent, ast.Call) and parent.func is attribute
    around = file.parents[parent] if called else parent
    return (attribute.attr == "dim") == called and isinstance(around, ast.Compare)


def _measured(context: Context) -> Iterator[ast.expr]:
    """The names and gradients that go into a norm, a sum or a reduction over ranks."""
    every = dict.fromkeys(node for call in measuring(context.file) for node in ast.walk(call))
    for node in every:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        around = context.file.parents[node]
        is_owner = isinstance(around, ast.Attribute) and around.attr in PARTS
        if (isinstance(node, ast.Name) or node.attr in PARTS) and not is_owner:
            if is_measured(context, node):
                yield node


def _asked_for_none(context: Context) -> Iterator[ast.expr]:
    """The parameters that `p.numel() > 0` or `p.shape.numel() > 0` tests for a shard on this rank."""
    for attribute in context.file.attributes.get("numel", ()):
        around = context.file.parents[context.file.parents[attribute]]
        if isinstance(around, ast.Compare) and getattr(around.comparators[0], "value", 1) == 0:
            value = attribute.value
            is_shape = isinstance(value, ast.Attribute) and value.attr == "shape"
            yield value.value if is_shape and isinstance(value, ast.Attribute) else value


def _use(context: Context, node: ast.expr) -> str:
    around = context.file.parents[node]
    return context.source(around if isinstance(around, ast.Attribute) else node)
