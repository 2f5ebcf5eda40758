"""What a program computes from sharded parameters and gradients as tensors: counts, shapes, norms.

Between forwards FSDP1's parameters were this rank's shards, plain tensors of one dimension. FSDP2's are DTensors of the whole
shape. Which of the two a program means is for a person to say: `local_shard` of the runtime gives the shard.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from fsdp_migrate.codemods.constructor.options import given_keys
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.left.measured import is_torchs, measured
from fsdp_migrate.codemods.left.norms_over_ranks import is_local_now
from fsdp_migrate.codemods.left.taken import is_known_as_whole, is_sharded, loop_of, taken
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP507",
    "local-tensor-ops",
    "counts, shapes and norms describe whole parameters; local_shard gives this rank's part",
)
RULES = (RULE,)

_COUNT = "a DTensor counts the whole parameter, on every rank: local_shard(p) of the runtime is this rank's share"
SHAPE = "now the whole parameter's shape decides, and FSDP1's shards had one dimension: training changes"
_NAME = "names and modules now decide, under FSDP1 a unit's parameters were one, called _flat_param: training changes"
NORM = "measures whole parameters, where FSDP1 measured this rank's shards: local_shard(p) of the runtime gives those"
_FAILS = (
    "fails on a DTensor: p.to_local() is this rank's shard, p.full_tensor() the whole parameter"
)
PLAIN = "a plain tensor beside DTensors fails: torch.zeros_like(p) and its like make one as p is"
_ADDRESS = "data_ptr() of a DTensor is 0: call it on p.to_local()"
_VECTOR = "now gives a DTensor of the whole vector, where FSDP1 gave this rank's shards: use p.to_local() or p.full_tensor()"

_ORIGINAL = re.compile(r"use_orig_params\b(?![\"']?\s*[:=]\s*False)")
_TESTS = frozenset({"endswith", "find", "fullmatch", "match", "search", "startswith"})
_MAKING = frozenset(
    {"torch.empty", "torch.full", "torch.ones", "torch.rand", "torch.randn", "torch.zeros"}
)
_FAILING = {
    "data_ptr": _ADDRESS,
    "numpy": _FAILS,
    "storage": _FAILS,
    "tolist": _FAILS,
    "untyped_storage": _FAILS,
}


def find(context: Context) -> Iterator[Found]:
    """Uses of sharded parameters as tensors."""
    for attribute in _used(context, reduces_over_ranks, "numel", "nelement"):
        yield Found(RULE, attribute, Action.MANUAL, _COUNT)
    for attribute in _used(context, lambda c, node: decides(c.file, node), "ndim", "dim", "shape"):
        yield Found(RULE, attribute, Action.MANUAL, SHAPE)
    for attribute in shapes(context.file):
        if is_sharded(context, attribute.value):
            yield Found(RULE, attribute, Action.MANUAL, PLAIN)
    for node in (*_tested_by_name(context), *_asked_of_modules(context)):
        yield Found(RULE, node, Action.MANUAL, _NAME)
    for attribute in _used(context, _is_called, *_FAILING):
        yield Found(RULE, attribute, Action.MANUAL, _FAILING[attribute.attr])
    for node in (*measured(context), *_asked_for_none(context)):
        if is_sharded(context, node) and not is_local_now(context, node):
            yield Found(RULE, node, Action.MANUAL, f"now {NORM}", shortened(_use(context, node)))
    yield from _vectors(context)


def shapes(file: File) -> Iterator[ast.Attribute]:
    """`p.shape` in `torch.zeros(p.shape)`, and `p.size()` likewise."""
    for name in ("shape", "size"):
        for attribute in file.attributes.get(name, ()):
            called = file.parents[attribute] if name == "size" else attribute
            call = file.parents[called]
            if isinstance(call, ast.Call) and called in call.args[:1]:
                if ast.unparse(call.func) in _MAKING:
                    yield attribute


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
            if not is_known_as_whole(context, call):
                yield call


def _asked_of_modules(context: Context) -> Iterator[ast.AST]:
    """`m.parameters(recurse=False)` in a loop over the modules of a model whose parameters were flat."""
    file = context.file
    for name in ("parameters", "named_parameters"):
        for named in file.attributes.get(name, ()):
            call = file.parents[named]
            if not isinstance(named.value, ast.Name) or not isinstance(call, ast.Call):
                continue
            own = any(keyword.arg == "recurse" for keyword in call.keywords)
            loop = loop_of(file, named.value) if own else None
            model = getattr(getattr(loop and loop[1], "func", None), "value", None)
            if model is not None and context.can_be_model(model) and _were_flat(context):
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
            if asked(context, attribute) and is_sharded(context, attribute.value):
                yield attribute


def _is_called(context: Context, attribute: ast.Attribute) -> bool:
    call = context.file.parents[attribute]
    return isinstance(call, ast.Call) and call.func is attribute


def decides(file: File, attribute: ast.Attribute) -> bool:
    """`p.ndim >= 2`, `p.dim() < 2`, `len(p.shape) == 1`."""
    parent = file.parents[attribute]
    called = isinstance(parent, ast.Call) and ast.unparse(parent.func)
    wanted = {"ndim": False, "shape": "len"}.get(attribute.attr, ast.unparse(attribute))
    around = file.parents[parent] if called else parent
    return called == wanted and isinstance(around, ast.Compare)


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


def reduces_over_ranks(context: Context, node: ast.AST) -> bool:
    """Whether the function around a node adds something up over ranks, or multiplies the node by their number."""
    function = context.file.function(node)
    for around in context.file.ancestors(node):
        if isinstance(around, ast.BinOp) and "world_size" in context.source(around):
            return True
    return any(
        "reduce" in last_name(call.func)
        and context.file.function(call) is function
        and is_torchs(context, call)
        for call in context.file.of(ast.Call)
    )
